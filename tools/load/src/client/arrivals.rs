//! Draws the send times and requests of an open loop one after the other from a seed.
//!
//! All times are ns since the start of the run. Each operation is O(1) and does not allocate.

use super::meter::nanos;
use super::plan::{Class, Distribution, Pace};
use super::random::Random;
use crate::spin::MAX_SERVICE;

/// A request that is intended to leave at `intended` and has no reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) intended: u64,
    /// CPU time of a spin request, in ns.
    pub(crate) service: u64,
    pub(crate) class: u16,
    pub(crate) level: u8,
    /// Set if the reply has overtaken the reply to an earlier request.
    pub(crate) answered: bool,
}

impl Request {
    /// The class of requests that are not counted: the first request of each connection, and the
    /// hog's.
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

pub(crate) struct Arrivals {
    random: Random,
    open: Option<Open>,
}

struct Open {
    next: f64,
    step: f64,
    poisson: bool,
    /// Index, within the group, of the connection for the next request.
    index: usize,
    connections: usize,
}

impl Arrivals {
    /// Creates the requests of a group from `base` on. The first one is due after `share` (0..1) of
    /// a step, so that groups with different shares are spread over the step.
    pub(crate) fn new(
        pace: Pace,
        connections: usize,
        base: u64,
        share: f64,
        seed: u64,
    ) -> Arrivals {
        let step = match pace {
            Pace::Closed => None,
            Pace::Open { period } => Some(period.as_nanos() as f64 / connections as f64),
            Pace::OpenRate { per_second } | Pace::Poisson { per_second } => Some(1e9 / per_second),
        };
        Arrivals {
            random: Random::new(seed),
            open: step.map(|step| Open {
                next: base as f64 + step * share,
                step,
                poisson: matches!(pace, Pace::Poisson { .. }),
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
        // A float that is too large saturates.
        self.open.as_ref().map_or(u64::MAX, |open| open.next as u64)
    }

    /// Takes the next request of an open loop and its connection, and advances to the request after
    /// it.
    pub(crate) fn take(&mut self, classes: &[Class]) -> (usize, Request) {
        let intended = self.next_due();
        let mut at = 0;
        if let Some(open) = &mut self.open {
            let gap = if open.poisson {
                self.random.exponential()
            } else {
                1.0
            };
            open.next += gap * open.step;
            at = open.index;
            open.index = (at + 1) % open.connections;
        }
        (at, self.draw(intended, classes))
    }

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
        let mut at = self.random.uniform();
        let mut class = 0;
        while class + 1 < classes.len() && at >= classes[class].share {
            at -= classes[class].share;
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
                let (at, request) = arrivals.take(&[]);
                assert_eq!((at as u64, request.intended), (index, due));
            }
        }
    }

    #[test]
    fn a_rate_is_the_rate_of_the_whole_group() {
        for (pace, spread) in [
            (Pace::OpenRate { per_second: 1000.0 }, 1),
            (Pace::Poisson { per_second: 1000.0 }, 200_000_000),
        ] {
            let mut arrivals = Arrivals::new(pace, 7, 0, 0.5, 1);
            for _ in 0..1000 {
                arrivals.take(&[]);
            }
            let off = arrivals.next_due().abs_diff(1_000_500_000);
            assert!(off <= spread, "{pace:?}: {off}");
        }
        let closed = Arrivals::new(Pace::Closed, 7, 0, 0.0, 1);
        assert_eq!(closed.next_due(), u64::MAX);
    }
}
