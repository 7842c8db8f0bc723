//! The `upshift` command: a demo, a web server, the machine-wide scheduler, test servers, and a
//! load generator.
//!
//! | module | concern |
//! |---|---|
//! | `args` | the command line as a whole |
//! | `values`, `choice` | single values of flags |
//! | `demo` | a short version of the benchmarks in three parts |
//! | `serve` | the web server |
//! | `daemon`, `sched` | the machine-wide scheduler; processes under a policy in user space |
//! | `top` | the live view of a process, or of the machine |
//! | `calibrate`, `doctor` | the costs of switches and timers here; the features that work here |
//! | `servers`, `load`, `burn` | servers to measure, the load generator, a batch process |
//! | `documents` | man pages and completions |
//!
//! A command is a folder: `args` defines its flags, `run` carries it out, `show` prints the result
//! if that takes more than a few lines.
//!
//! Exit status: 0 after success, 1 after a failure (the reason is on standard error), 2 for a wrong
//! command line, 130 if ended by Ctrl-C, 143 if ended by SIGTERM. Servers end with 0 on both
//! signals. `sched -- COMMAND` returns the status of the command.

mod args;
mod burn;
mod calibrate;
mod choice;
mod daemon;
mod demo;
mod doctor;
mod documents;
mod load;
mod sched;
mod serve;
mod servers;
mod top;
mod values;
mod wrap;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use clap::error::{ContextKind, ContextValue};

use args::{Cli, Command};
use servers::Service;

fn main() -> ExitCode {
    let args = match sched::expand_config(std::env::args_os().collect()) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(mut error) => {
            // No positional argument begins with `--`, so clap's hint to write it after `--`
            // misleads.
            if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
                tips.retain(|tip| !tip.to_string().contains("as a value"));
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
            }
            return print_parse_error(&error);
        }
    };
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints help, the version, or the error in the command line.
fn print_parse_error(error: &clap::Error) -> ExitCode {
    // A failed write to standard output shows when it is flushed.
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    let code = u8::try_from(error.exit_code()).unwrap_or(2);
    match printed {
        Err(error) if code == 0 && error.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "error: cannot print: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::from(code),
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Demo(args) => return demo::demo(&args),
        Command::Serve(args) => return serve::serve(&args),
        Command::MatrixServer(args) => servers::serve(Service::Matrix, &args)?,
        Command::PlaintextServer(args) => servers::serve(Service::Plaintext, &args)?,
        Command::SpinServer(args) => servers::serve(Service::Spin, &args)?,
        Command::Load(args) => return load::load(&args),
        Command::Burn(args) => burn::burn(&args)?,
        Command::Daemon(args) => daemon::daemon(&args)?,
        Command::Calibrate(args) => return calibrate::calibrate(&args),
        Command::Doctor(args) => return doctor::doctor(&args),
        Command::Documents(args) => documents::documents(&args)?,
        Command::Sched(args) => return sched::sched(&args),
        Command::Top(args) => top::top(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
