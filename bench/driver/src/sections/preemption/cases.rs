//! The loads of the section: what is asked, at which levels, and what each is called on the page.

use std::time::Duration;

use upshift_load::scenario::{self, LONG_SHARE};
use upshift_load::{Class, Distribution};

/// The level of all connections: requests are received there.
pub(crate) const CONNECTION: u8 = 32;
/// More urgent, and less.
const URGENT: u8 = 10;
const LESS_URGENT: u8 = 50;
/// Eight levels, half of them more urgent than the connections.
const EIGHT: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 60];

/// The levels of short and long requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// All at that of the connections.
    Same,
    /// All more urgent than the connections.
    Urgent,
    /// All less urgent than the connections.
    LessUrgent,
    /// Short ones more urgent than the connections, long ones less.
    Apart,
    /// Each of one of eight levels, whatever its length.
    Eight,
}

impl Mix {
    pub(crate) const ALL: [Mix; 5] = [
        Mix::Same,
        Mix::Urgent,
        Mix::LessUrgent,
        Mix::Apart,
        Mix::Eight,
    ];
    /// Those of the loads that are not measured at all of them.
    pub(crate) const TWO: [Mix; 2] = [Mix::Same, Mix::Apart];

    fn words(self) -> &'static str {
        match self {
            Mix::Same => "one level",
            Mix::Urgent => "all more urgent than the connections",
            Mix::LessUrgent => "all less urgent than the connections",
            Mix::Apart => "short urgent, long less urgent",
            Mix::Eight => "eight levels",
        }
    }

    /// The class that goals are about. Of eight levels it is the most urgent: the others rightly wait for long requests that are
    /// more urgent than they are.
    pub(crate) fn short(self) -> &'static str {
        match self {
            Mix::Eight => "short, the most urgent level",
            _ => "short",
        }
    }

    /// The mix in which short requests have the same levels, and there are no long ones to tell apart.
    pub(crate) fn without_long(self) -> Mix {
        match self {
            Mix::Apart => Mix::Urgent,
            other => other,
        }
    }

    /// Short requests that cost so much, and a share of long ones; none if it is 0.
    pub(crate) fn classes(self, kind: Kind, share: f64) -> Vec<Class> {
        let levels: &[u8] = match self {
            Mix::Same => &[CONNECTION],
            Mix::Urgent | Mix::Apart => &[URGENT],
            Mix::LessUrgent => &[LESS_URGENT],
            Mix::Eight => &EIGHT,
        };
        let class = |label: &str, service, level, share| Class {
            label: label.into(),
            service,
            distribution: Distribution::Fixed,
            level,
            share: share / levels.len() as f64,
        };
        let mut classes = Vec::new();
        for (at, &level) in levels.iter().enumerate() {
            let label = if at == 0 { self.short() } else { "short" };
            classes.push(class(label, kind.short(), level, 1.0 - share));
        }
        for &level in levels.iter().filter(|_| share > 0.0) {
            let level = if self == Mix::Apart {
                LESS_URGENT
            } else {
                level
            };
            classes.push(class("long", kind.long(), level, share));
        }
        classes
    }
}

/// The lengths of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// 0.5 µs and 500 µs.
    Micros,
    /// 25 µs and 25 ms.
    Millis,
}

impl Kind {
    pub(crate) const fn short(self) -> Duration {
        match self {
            Kind::Micros => scenario::SHORT_SERVICE,
            Kind::Millis => Duration::from_micros(25),
        }
    }

    fn long(self) -> Duration {
        self.short() * 1000
    }

    /// What a request costs in the mean, in seconds.
    pub(crate) fn mean(self) -> f64 {
        let [short, long] = [self.short(), self.long()].map(|time| time.as_secs_f64());
        (1.0 - LONG_SHARE) * short + LONG_SHARE * long
    }
}

/// Requests per second of the load of microseconds on two vCPUs: the client needs a part of the second CPU.
pub(crate) const RATE_OF_TWO: f64 = 5_000.0;
/// The loads of milliseconds, as shares of what the CPU could serve if a request cost nothing but its service time; the others are
/// measured where all have one level.
pub(crate) const MILLIS: [(f64, Mix); 3] =
    [(0.7, Mix::Same), (0.85, Mix::Same), (0.85, Mix::Apart)];

/// The load of microseconds.
pub(crate) fn micros(mix: Mix) -> String {
    format!("0.5 µs / 0.5 % of 500 µs, 20 k/s: {}", mix.words())
}

/// The same on a CPU that is kept from halting.
pub(crate) fn awake() -> String {
    format!("{}, the CPU kept awake", micros(Mix::Same))
}

/// The same on two vCPUs.
pub(crate) fn two(mix: Mix) -> String {
    format!(
        "0.5 µs / 0.5 % of 500 µs, 5 k/s, two vCPUs: {}",
        mix.words()
    )
}

/// The load of milliseconds.
pub(crate) fn millis(load: f64, mix: Mix) -> String {
    format!("25 µs / 0.5 % of 25 ms, load {load}: {}", mix.words())
}

/// Median of exponential service times.
pub(crate) const EXPONENTIAL: &str = "exponential 50 µs, load 0.7";
/// Their throughput.
pub(crate) const FLOOD: &str = "exponential 50 µs, offered 1.5 × capacity";
/// Mean service time of both.
pub(crate) const EXPONENTIAL_MEAN: Duration = Duration::from_micros(50);
/// Pings beside an endless loop of a less urgent level.
pub(crate) const PINGS: &str = "level 0 each ms beside a level 40 that never ends";
/// What preemption costs those that never overrun.
pub(crate) const COST: &str = "plaintext, 256 connections";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_in_every_mix() {
        for mix in Mix::ALL {
            for share in [0.0, LONG_SHARE] {
                let classes = mix.classes(Kind::Micros, share);
                let sum: f64 = classes.iter().map(|c| c.share).sum();
                assert!((sum - 1.0).abs() < 1e-9, "{mix:?}");
                assert!(classes.iter().any(|c| c.label == mix.short()));
                assert_eq!(classes.iter().any(|c| c.label == "long"), share > 0.0);
            }
        }
    }

    #[test]
    fn short_requests_keep_their_levels_without_long_ones() {
        for mix in Mix::ALL {
            let levels = |mix: Mix, share| -> Vec<u8> {
                let classes = mix.classes(Kind::Micros, share);
                let short = classes.iter().filter(|c| c.label != "long");
                short.map(|c| c.level).collect()
            };
            assert_eq!(levels(mix, LONG_SHARE), levels(mix.without_long(), 0.0));
        }
    }
}
