//! The `dataplane` program: the command line that every app has, with the built-in stages.

fn main() -> dataplane::Result<()> {
    dataplane::prelude::App::new().run()
}
