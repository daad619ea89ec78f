// Embeddings that follow their forces, and proxies that learn with them.

const LIMIT = 900;  // particles kept; the oldest go first

const gaussian = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());

function scatter(particles, [x, y], label, count, spread) {
  for (let k = 0; k < count; k++) particles.push({ x: x + spread * gaussian(), y: y + spread * gaussian(), label });
  particles.splice(0, Math.max(0, particles.length - LIMIT));
}

// One step of gradient descent for every particle, and for the proxies if they learn; none leaps.
function roll(particles, model, { rate, noise, learn }) {
  const onProxies = learn ? new Float64Array(2 * model.proxies.length) : undefined;
  const step = (force, by) => Math.min(by, 0.25 / Math.max(length(force.x, force.y), 1e-9));
  for (const each of particles) {
    const force = forceAt(model, each.label, each.x, each.y, onProxies), by = step(force, rate);
    each.x += by * force.x + noise * Math.sqrt(rate) * gaussian();
    each.y += by * force.y + noise * Math.sqrt(rate) * gaussian();
  }
  if (learn) model.proxies.forEach((proxy, j) => {
    const force = { x: onProxies[2 * j], y: onProxies[2 * j + 1] };
    const by = step(force, (rate * model.proxies.length) / Math.max(1, particles.length));
    proxy.x += by * force.x;
    proxy.y += by * force.y;
  });
}

function drawParticles(context, trails, view, particles, fade) {
  trails.globalCompositeOperation = "destination-out";
  trails.fillStyle = `rgba(0, 0, 0, ${fade})`;
  trails.fillRect(0, 0, view.width, view.height);
  trails.globalCompositeOperation = "source-over";
  for (const each of particles) {
    const [x, y] = view.toScreen(each.x, each.y);
    trails.fillStyle = COLOURS[each.label] + "80";
    trails.fillRect(x - 0.8, y - 0.8, 1.6, 1.6);
    context.fillStyle = COLOURS[each.label];
    stroke(context, "#0b1020b0", 1, () => context.arc(x, y, 3.2, 0, 2 * Math.PI));
    context.fill();
  }
}
