//! The command line of ampc.

mod cli;

#[global_allocator]
static ALLOCATOR: cli::Remembering = cli::Remembering;

fn main() -> std::process::ExitCode {
    cli::main()
}
