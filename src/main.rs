//! The command line of ampc.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
