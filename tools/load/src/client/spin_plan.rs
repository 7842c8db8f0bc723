//! What a run against a spin server does. Plain data; [`SpinPlan::check`] is called before anything starts.

use crate::spin::MAX_SERVICE;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// An open loop of spin requests of several classes, sharing the connections to one server.
#[derive(Clone, Debug)]
pub struct SpinPlan {
    /// The server.
    pub target: SocketAddr,
    /// Connections; requests take them in turn, and wait for nothing that is under way on them.
    pub connections: usize,
    /// Requests per second of all classes together.
    pub per_second: f64,
    /// When they come.
    pub arrivals: Arrivals,
    /// What is asked; their shares add up to 1.
    pub classes: Vec<Class>,
    /// Equal seeds give the same times, classes and service times.
    pub seed: u64,
    /// One more connection asks for this before the warm-up, and the reply is not waited for.
    pub hog: Option<Hog>,
    /// Time under load before measuring.
    pub warmup: Duration,
    /// Time of measuring.
    pub duration: Duration,
    /// How long after that replies are still waited for.
    pub drain: Duration,
    /// The CPU that the client runs on.
    pub pin: Option<usize>,
    /// The priority in SCHED_FIFO that the client runs at, so that programs on its CPU do not delay it. It sleeps most of the
    /// time, unless it polls for send times that are less than 60 µs apart.
    pub fifo: Option<u8>,
    /// The process whose CPU time is measured.
    pub server_pid: Option<u32>,
    /// Ends the run within 50 ms when true.
    pub stop: Option<Arc<AtomicBool>>,
}

/// When the requests of an open loop come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// A Poisson process: independent clients.
    Poisson,
    /// At even distances.
    Even,
}

/// A kind of requests, counted by itself.
#[derive(Clone, Debug)]
pub struct Class {
    /// The name in the outcome.
    pub label: String,
    /// CPU time of a request, or its mean.
    pub service: Duration,
    /// How it varies.
    pub distribution: Distribution,
    /// The level, 0 (most urgent) to 63.
    pub level: u8,
    /// The share of all requests, 0 to 1.
    pub share: f64,
}

/// How service times vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Not at all.
    Fixed,
    /// Exponentially, with the given mean.
    Exponential,
}

/// A request that occupies a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hog {
    /// CPU time.
    pub service: Duration,
    /// The level, 0 (most urgent) to 63.
    pub level: u8,
}

impl SpinPlan {
    /// A plan of one class of `service` at level 32, with Poisson arrivals on 32 connections, a warm-up of a tenth of
    /// `duration`, 500 ms for the last replies, and nothing else set.
    pub fn new(
        target: SocketAddr,
        per_second: f64,
        service: Duration,
        duration: Duration,
    ) -> SpinPlan {
        SpinPlan {
            target,
            connections: 32,
            per_second,
            arrivals: Arrivals::Poisson,
            classes: vec![Class {
                label: "short".into(),
                service,
                distribution: Distribution::Fixed,
                level: 32,
                share: 1.0,
            }],
            seed: 1,
            hog: None,
            warmup: duration / 10,
            duration,
            drain: Duration::from_millis(500),
            pin: None,
            fifo: None,
            server_pid: None,
            stop: None,
        }
    }

    /// Adds a class `long` that takes `share` of the first class's requests.
    #[must_use]
    pub fn with_long(mut self, service: Duration, level: u8, share: f64) -> SpinPlan {
        if let Some(short) = self.classes.first_mut() {
            short.share -= share;
        }
        self.classes.push(Class {
            label: "long".into(),
            service,
            distribution: Distribution::Fixed,
            level,
            share,
        });
        self
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if self.connections == 0 {
            return refuse("give at least one connection".into());
        }
        if self.duration.is_zero() {
            return refuse("the duration must be above 0".into());
        }
        if !(1e-3..=1e7).contains(&self.per_second) {
            return refuse(format!(
                "rate {} must be 0.001 to 10000000 per second",
                self.per_second
            ));
        }
        let hog = self.hog.map(|hog| ("hog", hog.service, hog.level));
        let classes = self.classes.iter();
        let kinds = classes.map(|c| (c.label.as_str(), c.service, c.level));
        for (label, service, level) in kinds.chain(hog) {
            if service.as_nanos() > MAX_SERVICE.into() || level > 63 {
                return refuse(format!(
                    "{label}: a request may take at most {} s, at level 0 to 63",
                    MAX_SERVICE / 1_000_000_000
                ));
            }
        }
        let shares = || self.classes.iter().map(|c| c.share);
        let sum: f64 = shares().sum();
        if !shares().all(|share| share >= 0.0) || (sum - 1.0).abs() > 1e-6 {
            return refuse(format!(
                "the shares of the classes must be 0 to 1 and add up to 1, not {sum}"
            ));
        }
        Ok(())
    }
}
