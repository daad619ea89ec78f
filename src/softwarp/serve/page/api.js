// The API's description, readable without anything from elsewhere.
const description = await (await fetch("/openapi.json")).json();
const make = (tag, text, className = "") => Object.assign(document.createElement(tag), { textContent: text, className });
// The fields of an answer and of what is in it, as [name, description].
function fields(schema, prefix = "") {
  const inner = description.components.schemas[(schema?.items ?? schema)?.$ref?.split("/").pop()]?.properties ?? {};
  return Object.entries(inner).flatMap(([name, each]) => [[prefix + name, each.description], ...fields(each, `${prefix}${name}.`)]);
}

for (const [path, methods] of Object.entries(description.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const section = make("section", "");
    section.append(make("h3", `${method.toUpperCase()} ${path}`), make("p", operation.description ?? operation.summary));
    const list = make("dl", "");
    for (const each of operation.parameters ?? []) {
      const { type, minimum, maximum, default: start } = each.schema.anyOf?.[0] ?? each.schema;
      const range = [type, minimum !== undefined && `from ${minimum}`, maximum !== undefined && `to ${maximum}`, start !== undefined && start !== "" && `default ${start}`].filter(Boolean).join(", ");
      list.append(make("dt", each.name), make("dd", `${each.description ?? ""} (${range})`));
    }
    const body = operation.requestBody && Object.keys(operation.requestBody.content).join(", ");
    if (body) list.append(make("dt", "body"), make("dd", body));
    const answer = operation.responses["200"].content ?? {};
    list.append(make("dt", "answer"), make("dd", Object.keys(answer).join(", ")));
    for (const [name, text] of fields(answer["application/json"]?.schema)) list.append(make("dt", name, "field"), make("dd", text));
    section.append(list);
    document.getElementById("paths").append(section);
  }
}
