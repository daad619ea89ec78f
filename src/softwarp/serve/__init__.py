"""An index in the browser: `softwarp.serve.app.create_app(index)` is the web application."""
