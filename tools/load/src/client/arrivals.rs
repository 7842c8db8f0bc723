//! Generates the requests of a load: their contents and, in an open loop, their send times. The
//! sequence depends only on the seed.
//!
//! All times are ns since the start of the run. Each operation is O(1) and does not allocate.

use super::meter::nanos;
use super::plan::{Class, Distribution, Pace};
use super::random::Random;
use crate::spin::MAX_SERVICE;

/// A request that was or will be sent, until it leaves the queue of its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Time at which the request is due.
    pub(crate) intended: u64,
    /// CPU time of a spin request, in ns.
    pub(crate) service: u64,
    /// Index of the class, or [`Request::UNCOUNTED`].
    pub(crate) class: u16,
    pub(crate) level: u8,
    /// Set when the reply arrives while an earlier request still waits for its own.
    pub(crate) answered: bool,
}

impl Request {
    /// Class of the requests that are not counted: the first request of each connection, and the
    /// request of the hog, which occupies the server during the run.
    pub(crate) const UNCOUNTED: u16 = u16::MAX;

    pub(crate) fn uncounted(service: u64, level: u8) -> Request {
        Request {
            intended: 0,
            service,
            class: Request::UNCOUNTED,
            level,
            answered: false,
        }
    }
}

/// Generator of the requests of a group of connections.
pub(crate) struct Arrivals {
    random: Random,
    /// Send times of an open loop; `None` in a closed loop.
    open: Option<OpenLoop>,
}

struct OpenLoop {
    /// Time at which the next request is due.
    next_due_ns: f64,
    /// Mean time between two requests of the group.
    mean_gap_ns: f64,
    is_poisson: bool,
    /// Index, within the group, of the connection for the next request.
    index: usize,
    connections: usize,
}

impl Arrivals {
    /// Creates the generator of the requests of a group of connections. In an open loop, the first
    /// request is due at `base` plus `share` (0..1) of the mean gap between requests, so that
    /// groups with different shares do not send at the same time.
    pub(crate) fn new(
        pace: Pace,
        connections: usize,
        base: u64,
        share: f64,
        seed: u64,
    ) -> Arrivals {
        let mean_gap_ns = match pace {
            Pace::Closed => None,
            Pace::Open { period } => Some(period.as_nanos() as f64 / connections as f64),
            Pace::OpenRate { per_second } | Pace::Poisson { per_second } => Some(1e9 / per_second),
        };
        Arrivals {
            random: Random::new(seed),
            open: mean_gap_ns.map(|mean_gap_ns| OpenLoop {
                next_due_ns: base as f64 + mean_gap_ns * share,
                mean_gap_ns,
                is_poisson: matches!(pace, Pace::Poisson { .. }),
                index: 0,
                connections,
            }),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the time of the next request; `u64::MAX` in a closed loop.
    pub(crate) fn next_due(&self) -> u64 {
        // The cast saturates.
        self.open
            .as_ref()
            .map_or(u64::MAX, |open| open.next_due_ns as u64)
    }

    /// Returns the next request of an open loop and the index of its connection, and advances to
    /// the request after it.
    pub(crate) fn take(&mut self, classes: &[Class]) -> (usize, Request) {
        let intended = self.next_due();
        let mut connection = 0;
        if let Some(open) = &mut self.open {
            let gap = if open.is_poisson {
                self.random.exponential()
            } else {
                1.0
            };
            open.next_due_ns += gap * open.mean_gap_ns;
            connection = open.index;
            open.index = (connection + 1) % open.connections;
        }
        (connection, self.draw(intended, classes))
    }

    /// Draws the class and the service time of a request that is due at `intended`.
    pub(crate) fn draw(&mut self, intended: u64, classes: &[Class]) -> Request {
        let mut request = Request {
            intended,
            service: 0,
            class: 0,
            level: 0,
            answered: false,
        };
        if classes.is_empty() {
            return request;
        }
        let mut point = self.random.uniform();
        let mut class = 0;
        while class + 1 < classes.len() && point >= classes[class].share {
            point -= classes[class].share;
            class += 1;
        }
        let mean = nanos(classes[class].service);
        request.service = match classes[class].distribution {
            Distribution::Fixed => mean,
            Distribution::Exponential => (mean as f64 * self.random.exponential()) as u64,
        };
        request.service = request.service.min(MAX_SERVICE);
        request.class = class as u16;
        request.level = classes[class].level;
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn connections_are_spread_over_the_period() {
        let period = Duration::from_micros(100);
        let mut arrivals = Arrivals::new(Pace::Open { period }, 4, 1000, 0.0, 1);
        for k in 0..3 {
            for index in 0..4 {
                let due = 1000 + k * 100_000 + index * 25_000;
                assert_eq!(arrivals.next_due(), due);
                let (connection, request) = arrivals.take(&[]);
                assert_eq!((connection as u64, request.intended), (index, due));
            }
        }
    }

    #[test]
    fn a_rate_is_the_rate_of_the_whole_group() {
        for (pace, tolerance_ns) in [
            (Pace::OpenRate { per_second: 1000.0 }, 1),
            (Pace::Poisson { per_second: 1000.0 }, 200_000_000),
        ] {
            let mut arrivals = Arrivals::new(pace, 7, 0, 0.5, 1);
            for _ in 0..1000 {
                arrivals.take(&[]);
            }
            // 1,000 gaps of 1 ms, after the share of 0.5 of a gap.
            let error_ns = arrivals.next_due().abs_diff(1_000_500_000);
            assert!(error_ns <= tolerance_ns, "{pace:?}: {error_ns} ns off");
        }
        let closed = Arrivals::new(Pace::Closed, 7, 0, 0.0, 1);
        assert_eq!(closed.next_due(), u64::MAX);
    }
}
