//! The upshift command: demo, test servers and load generator.
//!
//! | module | concern |
//! |---|---|
//! | `args`, `spin_args`, `values` | the command line |
//! | `burn_cmd` | a batch job that takes what it gets |
//! | `calibrate` | costs and rights of this machine |
//! | `daemon_cmd`, `daemon_args` | the machine-wide scheduler |
//! | `documents` | man pages and completions |
//! | `demo` | the tour: children, six experiments, progress |
//! | `serve`, `serve_args` | the web server |
//! | `sched_cmd` | policies over processes |
//! | `servers` | matrix, plaintext and spin server in two models |
//! | `load_cmd`, `load_show` | the client and its result |
//! | `spawn_test` | memory and time of a million coroutines |
//! | `report`, `table` | HTML with plots, tables of the terminal |
//! | `top` | the live view of a process, or of the machine |
//!
//! Exit status: 0 done, 1 failed (the reason is on standard error), 2 wrong usage, 130 ended by
//! Ctrl-C, 143 by SIGTERM (servers end with 0 on both). `sched -- COMMAND`: that of the command.

mod args;
mod burn_cmd;
mod calibrate;
mod daemon_args;
mod daemon_cmd;
mod demo;
mod doctor;
mod documents;
mod load_cmd;
mod load_show;
mod report;
mod sched_cmd;
mod serve;
mod serve_args;
mod servers;
mod spawn_test;
mod spin_args;
mod table;
mod top;
mod values;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use args::{Cli, Command};
use servers::Service;

fn main() -> ExitCode {
    let words = match sched_cmd::expanded(std::env::args_os().collect()) {
        Ok(words) => words,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(said) => return say(&said),
    };
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints help, the version, or what is wrong with the command line.
fn say(said: &clap::Error) -> ExitCode {
    // Of what goes to standard output what cannot be written shows when it is flushed.
    let printed = said.print().and_then(|()| std::io::stdout().flush());
    let code = u8::try_from(said.exit_code()).unwrap_or(2);
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
        Command::Serve(args) => serve::serve(&args)?,
        Command::MatrixServer(args) => servers::serve(Service::Matrix, &args)?,
        Command::PlaintextServer(args) => servers::serve(Service::Plaintext, &args)?,
        Command::SpinServer(args) => servers::serve(Service::Spin, &args)?,
        Command::Load(args) => return load_cmd::load(&args),
        Command::Burn(args) => burn_cmd::burn(&args)?,
        Command::Daemon(args) => daemon_cmd::daemon(&args)?,
        Command::Calibrate(args) => return calibrate::calibrate(&args),
        Command::Doctor(args) => return doctor::doctor(&args),
        Command::Documents(args) => documents::documents(&args)?,
        Command::Sched(args) => return sched_cmd::sched(&args),
        Command::Top(args) => top::top(&args)?,
        Command::SpawnTest(args) => spawn_test::spawn_test(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
