//! The `dataplane` program. It has the command line that all apps have, the built-in stages, and the command `bench`.

fn main() -> dataplane::Result<()> {
    dataplane::prelude::App::new().command(dataplane_bench::command::command(), dataplane_bench::command::run).run()
}
