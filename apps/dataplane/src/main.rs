//! The `dataplane` program. It has the command line that all apps have, and the built-in stages.

fn main() -> dataplane::Result<()> {
    dataplane::prelude::App::new().run()
}
