//! The flags of `upshift load spin`, and the plan they describe.

use std::time::Duration;

use clap::{Args, ValueEnum};
use upshift_load::{Class, Distribution, Plan};

use super::measuring::MeasuringArgs;
use crate::values::{self, Endpoint};

/// Default level of requests.
const LEVEL: u8 = 32;

/// Flags of `upshift load spin`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  upshift load spin --connect 127.0.0.1:7000 --rate 20000
  upshift load spin --connect 127.0.0.1:7000 --rate 20000 --short 500ns \\
                    --long 500us --long-share 0.5%
  upshift load spin --connect 127.0.0.1:7000 --rate 10000 --short 50us --distribution exponential

Open loop: requests are sent at random times, as by independent clients, whatever the server does;
latency is measured per class, from the time a request was due. Requests that have no
reply 500 ms after the end of the load are reported as waiting. Equal seeds give equal loads. The
exit code is 1 when a connection failed or a reply was wrong.")]
pub(crate) struct SpinLoadArgs {
    /// Address of the server
    #[arg(long, value_name = "ADDR", value_parser = values::endpoint)]
    pub(crate) connect: Endpoint,
    /// Connections; requests take them in turn
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = values::count)]
    pub(crate) connections: usize,
    /// Requests per second, short and long together
    #[arg(long, value_name = "REQ/S", default_value = "1000", value_parser = values::rate)]
    pub(crate) rate: f64,
    /// CPU time of a short request
    #[arg(long, value_name = "TIME", default_value = "500ns", value_parser = values::service)]
    pub(crate) short: Duration,
    /// CPU time of a long request
    #[arg(long, value_name = "TIME", default_value = "500us", value_parser = values::service)]
    pub(crate) long: Duration,
    /// Share of long requests, e.g. `0.5%` or `0.005`
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = upshift_units::share)]
    pub(crate) long_share: f64,
    /// Distribution of CPU time in both classes: fixed or exponential
    #[arg(long, value_enum, default_value = "fixed", hide_possible_values = true)]
    pub(crate) distribution: DistributionArg,
    /// Level of short requests: 0 (most urgent) to 63
    #[arg(long, value_name = "LEVEL", default_value_t = LEVEL, value_parser = values::level)]
    pub(crate) level: u8,
    /// Level of long requests [default: that of short ones]
    #[arg(long, value_name = "LEVEL", value_parser = values::level)]
    pub(crate) long_level: Option<u8>,
    /// Seed for the random send times, classes and CPU times
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Run the client in SCHED_FIFO, so that programs on its CPU do not delay it
    #[arg(long)]
    pub(crate) elevate: bool,
    #[command(flatten)]
    pub(crate) measuring: MeasuringArgs,
}

/// Distribution of CPU times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DistributionArg {
    /// Constant
    Fixed,
    /// Exponential
    Exponential,
}

impl SpinLoadArgs {
    /// Returns the plan of these flags.
    pub(crate) fn plan(&self) -> Plan {
        let mut plan = Plan::spin(
            self.connect.address,
            self.rate,
            Duration::ZERO,
            self.measuring.duration,
        );
        let class = |label: &str, service, level, share| Class {
            label: label.into(),
            service,
            distribution: match self.distribution {
                DistributionArg::Fixed => Distribution::Fixed,
                DistributionArg::Exponential => Distribution::Exponential,
            },
            level,
            share,
        };
        plan.classes = vec![class(
            "short",
            self.short,
            self.level,
            1.0 - self.long_share,
        )];
        if self.long_share > 0.0 {
            let level = self.long_level.unwrap_or(self.level);
            plan.classes
                .push(class("long", self.long, level, self.long_share));
        }
        plan.groups[0].connections = self.connections;
        plan.seed = self.seed;
        plan.warmup = self.measuring.warmup;
        plan.pin = self.measuring.pin;
        plan.server_pids = self.measuring.server_pid.into_iter().collect();
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use crate::load::LoadWork;
    use clap::Parser;
    use upshift_load::Pace;

    fn plan(more: &str) -> Plan {
        let line = format!("upshift load spin --connect 127.0.0.1:1 {more}");
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Load(load) = cli.command else {
            panic!("wrong command")
        };
        let LoadWork::Spin(args) = load.work else {
            panic!("wrong work")
        };
        args.plan()
    }

    #[test]
    fn without_a_share_there_is_one_class() {
        let plan = plan("--short 25us --rate 2e4");
        assert_eq!(plan.classes.len(), 1);
        assert_eq!(plan.classes[0].service, Duration::from_micros(25));
        assert_eq!(plan.pace, Pace::Poisson { per_second: 2e4 });
    }

    #[test]
    fn long_requests_take_their_share_and_their_level() {
        let plan = plan("--long 25ms --long-share 0.5% --level 3 --long-level 9");
        let [short, long] = &plan.classes[..] else {
            panic!("expected two classes")
        };
        assert_eq!((short.level, long.level), (3, 9));
        assert!((long.share - 0.005).abs() < 1e-12 && (short.share - 0.995).abs() < 1e-12);
    }

    #[test]
    fn values_that_the_server_refuses_are_refused_here() {
        for wrong in [
            "--short 61s",
            "--long-share 101%",
            "--level 64",
            "--distribution bimodal",
        ] {
            let line = format!("upshift load spin --connect 127.0.0.1:1 {wrong}");
            assert!(
                Cli::try_parse_from(line.split_whitespace()).is_err(),
                "{wrong}"
            );
        }
    }
}
