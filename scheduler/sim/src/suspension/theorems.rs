//! Checks the theorems of `docs/preemption-proofs.md` against the outcomes of loads.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use upshift_core::preempt::{BURST, MAX_SUSPENSION, RESERVE, REST_LENGTH, SHARE, TURN_LENGTH};

use super::{Arrival, Load, Outcome, Wait, WatcherState, random, run_load};

/// Distribution of the lengths of polls.
#[derive(Clone, Copy, Debug)]
pub enum Service {
    /// The same time for all polls, ns.
    Fixed(u64),
    /// Exponential with this mean, ns.
    Exponential(u64),
    /// The first time for 15 of 16 polls, the second for the remaining ones, ns.
    Bimodal(u64, u64),
}

/// Levels of the polls.
#[derive(Clone, Copy, Debug)]
pub enum Levels {
    /// All polls at one level.
    Same,
    /// On average, one in this number of polls is more urgent than the others.
    UrgentOneIn(u64),
    /// Eight levels, in equal parts.
    Eight,
}

/// Parameters from which a load is generated.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// See [`Load`].
    pub cost: u64,
    /// See [`Load`].
    pub quantum: u64,
    /// See [`Load`].
    pub max_wake_delay: u64,
    /// See [`Load`].
    pub look_cost: u64,
    /// See [`Load`].
    pub expects_urgent: bool,
    /// See [`Load`].
    pub slowdown: u64,
    /// See [`Load`].
    pub vcpus: usize,
    /// Number of polls.
    pub polls: u64,
    /// Lengths of the polls.
    pub service: Service,
    /// Levels of the polls.
    pub levels: Levels,
    /// Share of the vCPUs' time that the polls need, in percent.
    pub percent: u64,
    /// One in this number of polls sleeps in its middle; 0 if no poll sleeps.
    pub sleeps_one_in: u64,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Shape {
    /// Generates the load. Arrivals are a Poisson process.
    #[must_use]
    pub fn load(&self) -> Load {
        let mut state = self.seed;
        let mut next = || {
            state = random(state);
            state
        };
        let mean = match self.service {
            Service::Fixed(time) | Service::Exponential(time) => time,
            Service::Bimodal(short, long) => (15 * short + long) / 16,
        };
        let gap = mean * 100 / self.percent / self.vcpus as u64;
        let mut at = 0;
        let arrivals = (0..self.polls).map(|n| {
            at += exponential(gap, next());
            let service = match self.service {
                Service::Fixed(time) => time,
                Service::Exponential(mean) => exponential(mean, next()),
                Service::Bimodal(short, long) => match next() % 16 {
                    0 => long,
                    _ => short,
                },
            };
            let level = match self.levels {
                Levels::Same => 20,
                Levels::UrgentOneIn(n) => 20 - 10 * u8::from(next().is_multiple_of(n)),
                Levels::Eight => (next() % 8) as u8,
            };
            let sleeps = self.sleeps_one_in != 0 && n % self.sleeps_one_in == 1;
            Arrival {
                at,
                level,
                service: service.max(2),
                sleeps: sleeps.then(|| exponential(1_000_000, next())),
            }
        });
        Load {
            cost: self.cost,
            quantum: self.quantum,
            max_wake_delay: self.max_wake_delay,
            look_cost: self.look_cost,
            expects_urgent: self.expects_urgent,
            slowdown: self.slowdown,
            vcpus: self.vcpus,
            arrivals: arrivals.collect(),
        }
    }
}

fn exponential(mean: u64, random: u64) -> u64 {
    let uniform = ((random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    (-uniform.ln() * mean as f64) as u64
}

/// Generates random shapes with fewer than `polls` polls.
pub fn shapes(polls: u64) -> impl Strategy<Value = Shape> {
    let time = || prop_oneof![500..5_000_u64, 5_000..100_000_u64, 100_000..5_000_000_u64];
    let service = prop_oneof![
        time().prop_map(Service::Fixed),
        time().prop_map(Service::Exponential),
        (500..50_000_u64, 100_000..20_000_000_u64).prop_map(|(a, b)| Service::Bimodal(a, b)),
    ];
    let levels = prop_oneof![
        Just(Levels::Same),
        (2..20_u64).prop_map(Levels::UrgentOneIn),
        Just(Levels::Eight),
    ];
    let machine = (
        5_000..60_000_u64,
        0..1_000_000_u64,
        0..100_000_u64,
        (0..100_u64, any::<bool>()),
        (prop_oneof![Just(1), 1..20_u64], 1..4_usize),
    );
    let workload = (
        1..polls,
        service,
        levels,
        20..200_u64,
        0..20_u64,
        any::<u64>(),
    );
    (machine, workload).prop_map(|(machine, workload)| {
        let (cost, quantum, max_wake_delay, (look_percent, expects_urgent), (slowdown, vcpus)) =
            machine;
        let (polls, service, levels, percent, sleeps_one_in, seed) = workload;
        // The cost of a suspension includes two looks.
        let look_cost = cost * look_percent / 200;
        Shape {
            cost,
            quantum,
            max_wake_delay,
            look_cost,
            expects_urgent,
            slowdown,
            vcpus,
            polls,
            service,
            levels,
            percent,
            sleeps_one_in,
            seed,
        }
    })
}

/// Returns the longest time in nanoseconds that theorem 1 or 2 allows for a wait. `loses_time` is
/// true if polls of the load sleep or wait for the CPU.
fn wait_bound(load: &Load, wait: &Wait, loses_time: bool) -> u64 {
    let (cost, slowdown) = (load.cost, load.slowdown);
    let quantum = load.quantum.max(4 * cost);
    let (run_limit, price) = if wait.is_equal {
        (quantum, cost + RESERVE)
    } else {
        (cost, cost)
    };
    // Until the next look, at least the cost of a look passes. If a poll has slept or waited for
    // the CPU, a quarter of the lost time passes, but at most the length of a turn.
    let lost_time = if loses_time { TURN_LENGTH } else { 0 };
    let time_to_look =
        run_limit.saturating_sub(wait.ran) * slowdown + load.look_cost + slowdown + lost_time;
    let time_unheard = match wait.watcher {
        WatcherState::Listens => 0,
        WatcherState::Ignores => MAX_SUSPENSION,
        WatcherState::Rests => 2 * MAX_SUSPENSION,
    };
    let mut bound = time_to_look + time_unheard;
    if wait.lacked_budget {
        // The debt is at most the price of one suspension.
        bound += SHARE * (price + cost) + load.max_wake_delay + time_unheard;
    }
    if wait.had_turn {
        bound += TURN_LENGTH * slowdown + cost + load.max_wake_delay;
    }
    (wait.needed * slowdown).min(bound) + cost + 2 * load.max_wake_delay
}

/// Runs a load and checks the theorems.
///
/// # Errors
/// A description of the violation.
pub fn check(load: &Load) -> Result<Outcome, String> {
    let outcome = run_load(load);
    let (cost, delay, end) = (load.cost, load.max_wake_delay, outcome.end);
    let loses_time = load.slowdown > 1 || load.arrivals.iter().any(|poll| poll.sleeps.is_some());
    let waits = outcome.waits.iter();
    for wait in waits.filter(|wait| !wait.was_followed) {
        let theorem = 1 + u8::from(wait.is_equal);
        let bound = wait_bound(load, wait, loses_time);
        if wait.waited > bound {
            return Err(format!(
                "theorem {theorem}: a wait over the bound of {bound} ns: {wait:?}"
            ));
        }
    }
    if outcome.for_expired != 0 {
        let count = outcome.for_expired;
        return Err(format!(
            "theorem 2: {count} suspensions for polls that had used their quantum"
        ));
    }
    if outcome.before_quantum != 0 {
        let count = outcome.before_quantum;
        return Err(format!(
            "theorem 2: {count} polls suspended before they had used their quantum"
        ));
    }
    for (vcpu, times) in outcome.suspension_times.iter().enumerate() {
        // Largest lead of the cost of suspensions over its share of the time.
        let mut lowest = i128::MAX;
        for (n, at) in times.iter().enumerate() {
            let spent = (n as u64 * cost * SHARE) as i128 - i128::from(*at);
            lowest = lowest.min(spent);
            let ahead = spent + i128::from(cost * SHARE) - lowest;
            if ahead > i128::from(SHARE * BURST) {
                return Err(format!("theorem 3: {ahead} ns over the share at {at} ns"));
            }
        }
        let turns = outcome.turns[vcpu];
        if turns > end / MAX_SUSPENSION + 1 {
            return Err(format!("theorem 3: {turns} turns in {end} ns"));
        }
        let stops = times.len() as u64 + turns + outcome.set_aside[vcpu];
        let stale_looks = outcome.stale_looks[vcpu];
        // Besides by time, a rest ends with a stop, and with a look at a poll that is resumed or
        // has used its quantum.
        if stale_looks > end / MAX_SUSPENSION + 2 * stops + 1 {
            return Err(format!(
                "theorem 3: {stale_looks} stale looks in {end} ns, {stops} polls stopped"
            ));
        }
    }
    let max_off_cpu = REST_LENGTH
        + (MAX_SUSPENSION + TURN_LENGTH) * load.slowdown
        + 2 * MAX_SUSPENSION
        + 3 * (cost + delay);
    if outcome.longest_off_cpu > max_off_cpu {
        let time = outcome.longest_off_cpu;
        return Err(format!(
            "theorem 4: {time} ns off the CPU; the bound is {max_off_cpu} ns"
        ));
    }
    let max_sleep = 2 * MAX_SUSPENSION + cost + 2 * delay;
    if outcome.longest_blocking_sleep > max_sleep {
        let time = outcome.longest_blocking_sleep;
        return Err(format!(
            "theorem 4: a sleeping poll was in the way for {time} ns; the bound is {max_sleep} ns"
        ));
    }
    Ok(outcome)
}

/// Generates `count` loads from a seed and checks the theorems for each.
///
/// # Errors
/// Returns the smallest shape found whose load breaks a theorem, and the violation.
pub fn search_loads(count: u32, seed: u64) -> Result<(), String> {
    let config = Config {
        cases: count,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    };
    let holds = |shape: Shape| match check(&shape.load()) {
        Ok(_) => Ok(()),
        Err(violation) => Err(TestCaseError::fail(violation)),
    };
    TestRunner::new(config)
        .run(&shapes(80), holds)
        .map_err(|error| error.to_string())
}
