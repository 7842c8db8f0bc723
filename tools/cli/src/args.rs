//! The command line: the subcommands, each composed of its flags.
//!
//! The modules named `args` only describe flags; they open and start nothing. The parsers of
//! [`crate::values`] check every value, so the fields of these structs are in range.

use clap::{Parser, Subcommand};

use crate::burn::BurnArgs;
use crate::calibrate::CalibrateArgs;
use crate::daemon::DaemonArgs;
use crate::demo::DemoArgs;
use crate::doctor::DoctorArgs;
use crate::documents::DocumentsArgs;
use crate::load::LoadArgs;
use crate::sched::SchedArgs;
use crate::serve::{self, ServeArgs};
use crate::servers::{self, ServerArgs};
use crate::top::TopArgs;

/// Columns of the help; longer lines are wrapped.
const HELP_WIDTH: usize = 100;

/// One priority scheduler for coroutines: in a process, across processes, and for unmodified
/// programs.
#[derive(Debug, Parser)]
#[command(
    name = "upshift",
    version,
    arg_required_else_help = true,
    max_term_width = HELP_WIDTH
)]
#[command(after_help = "Examples:
  upshift demo                 three measurements in 45 seconds; writes upshift-report.html
  upshift demo --quick         the same in 15 seconds, shorter and less exact
  upshift serve                the current folder on http://127.0.0.1:8080
  upshift sched rr --cpu 0 --run 'make -j4' --run './job'
  upshift daemon               the machine's scheduler; servers join it with --board auto
  upshift top                  what the processes on Upshift are doing

`upshift help COMMAND` shows the flags and examples of one command.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the effect of priorities: three measurements in 45 seconds, verdicts, a report
    Demo(DemoArgs),
    /// Serve files and endpoints over HTTP/1.1 and HTTP/2; every request has a priority
    #[command(after_help = serve::EXAMPLES)]
    Serve(Box<ServeArgs>),
    /// Schedule unmodified processes: round-robin, timetable, shares, deadlines, levels
    Sched(Box<SchedArgs>),
    /// Run the most urgent process of each CPU: the machine-wide scheduler, in the foreground
    Daemon(DaemonArgs),
    /// Show a running process: levels, vCPUs, the longest polls and their spawn locations
    Top(TopArgs),
    /// Measure the cost of switches and timers on this machine, and list missing privileges
    Calibrate(CalibrateArgs),
    /// Report what works on this machine and how to enable the rest, on one screen
    Doctor(DoctorArgs),
    /// Serve squares of matrices; each connection has three coroutines: receive, compute, send
    MatrixServer(ServerArgs),
    /// Serve `Hello, World!` over HTTP/1.1 and 1.0 with keep-alive and pipelining
    PlaintextServer(ServerArgs),
    /// Serve requests that each compute for a given CPU time at a given level
    #[command(after_help = servers::SPIN_EXAMPLES)]
    SpinServer(ServerArgs),
    /// Use all remaining CPU time, like a batch job, and report the work done
    Burn(BurnArgs),
    /// Generate load for a server and report throughput and latency
    Load(LoadArgs),
    /// Write man pages and completions
    #[command(hide = true)]
    Documents(DocumentsArgs),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::choice::Switch;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    fn error_of(line: &str) -> String {
        parse(line).expect_err("must be refused").to_string()
    }

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn server_flags_parse() {
        let cli = parse(
            "upshift matrix-server --listen 127.0.0.1:7000@5 --listen [::1]:7001 --vcpus 2 \
             --pin 0,0 --level 7",
        )
        .unwrap();
        let Command::MatrixServer(args) = cli.command else {
            panic!("wrong command")
        };
        assert_eq!(args.listen.len(), 2);
        assert_eq!(args.listen[0].level, Some(5));
        assert_eq!(args.listen[1].level, None);
        assert_eq!(args.vcpus, Some(2));
        assert_eq!(args.pin, [0, 0]);
        assert_eq!(args.level, 7);
    }

    #[test]
    fn preemption_is_on_by_default_in_serve_and_off_in_the_test_servers() {
        let served = |line: &str| {
            let Command::Serve(args) = parse(line).unwrap().command else {
                panic!("wrong command")
            };
            args.scheduling.preempt
        };
        assert_eq!(served("upshift serve"), Switch::On);
        assert_eq!(served("upshift serve --preempt off"), Switch::Off);

        let parsed = |more: &str| {
            let line = format!("upshift spin-server --listen 127.0.0.1:7000 {more}");
            let Command::SpinServer(args) = parse(&line).unwrap().command else {
                panic!("wrong command")
            };
            (args.scheduling.preempt, args.scheduling.quantum)
        };
        assert_eq!(parsed(""), (Switch::Off, None));
        let quantum = Some(Duration::from_micros(50));
        assert_eq!(parsed("--preempt on --quantum 50us"), (Switch::On, quantum));
        let text = error_of("upshift matrix-server --listen 127.0.0.1:7000 --preempt perhaps");
        assert!(text.contains("on") && text.contains("off"), "{text}");
        assert!(parse("upshift plaintext-server --listen 127.0.0.1:1 --quantum 0s").is_err());
    }

    #[test]
    fn level_64_is_refused_with_the_allowed_range() {
        for line in [
            "upshift matrix-server --listen 127.0.0.1:7000 --level 64",
            "upshift plaintext-server --listen 127.0.0.1:7000@64",
            "upshift matrix-server --listen 127.0.0.1:7000 --level=-1",
        ] {
            let text = error_of(line);
            assert!(text.contains("0 (most urgent) to 63"), "{text}");
        }
    }

    #[test]
    fn errors_about_unknown_values_name_the_allowed_values() {
        let text = error_of("upshift burn --model fibre");
        assert!(
            text.contains("coroutine") && text.contains("thread"),
            "{text}"
        );
        let text = error_of("upshift demo --only 7");
        assert!(text.contains("1 to 3"), "{text}");
        let text = error_of("upshift load matrix --connect 127.0.0.1:1 --period 5weeks");
        assert!(text.contains("100ms"), "{text}");
        let text = error_of("upshift load ftp");
        assert!(text.contains("ftp"), "{text}");
    }

    #[test]
    fn the_flags_that_set_a_pace_exclude_each_other() {
        let base = "upshift load matrix --connect 127.0.0.1:1";
        assert!(parse(&format!("{base} --closed --rate 5")).is_err());
        assert!(parse(&format!("{base} --period 1ms --rate 5")).is_err());
        assert!(parse(&format!("{base} --closed")).is_ok());
    }

    #[test]
    fn no_arguments_show_the_help() {
        let error = parse("upshift").expect_err("help is an early exit");
        assert!(error.to_string().contains("demo"));
    }

    #[test]
    fn examples_fit_into_the_width_of_the_help() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string);
            for line in help.unwrap_or_default().lines() {
                let name = command.get_name();
                assert!(line.chars().count() <= HELP_WIDTH, "{name}: {line}");
            }
        }
    }

    #[test]
    fn every_visible_subcommand_has_examples() {
        for command in Cli::command()
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
        {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                help.contains("Examples"),
                "{} has no examples",
                command.get_name()
            );
        }
    }
}
