//! Tests the theorems of `docs/preemption-proofs.md` with random loads. `cargo xtask soak` runs a
//! million loads.

use upshift_core::preempt::{MAX_SUSPENSION, REST_LENGTH, SHARE, TURN_LENGTH};
use upshift_sim::suspension::{
    Arrival, Levels, Load, Outcome, Service, Shape, Wait, WatcherState, check, run_load,
    search_loads,
};

const CASES: u32 = 10_000;
const C: u64 = 20_000;

#[test]
fn waiting_and_suspending_stay_within_their_bounds() {
    search_loads(CASES, 12).unwrap_or_else(|what| panic!("{what}"));
}

fn shape(service: Service, levels: Levels, percent: u64) -> Shape {
    Shape {
        cost: C,
        quantum: 0,
        late: 0,
        look: 0,
        expects_urgent: true,
        slow: 1,
        vcpus: 1,
        polls: 40_000,
        service,
        levels,
        percent,
        sleeps_one_in: 0,
        seed: 7,
    }
}

/// Returns the mean wait for less urgent polls, divided by the mean wait under the ideal decision,
/// which knows the lengths of polls.
fn mean_ratio(service: Service) -> f64 {
    let mut load = shape(service, Levels::Same, 10).load();
    let mut at = 0;
    let arrivals = std::mem::take(&mut load.arrivals);
    for (n, arrival) in (0_u64..).zip(arrivals) {
        // Multiples of the golden ratio spread the arrivals evenly over the times of the poll.
        let part = (n as f64 * 0.618_033_988_75).fract();
        let urgent = at + (arrival.service as f64 * part) as u64;
        load.arrivals.push(Arrival { at, ..arrival });
        load.arrivals.push(poll(urgent, 10, C / 40));
        at += 2 * arrival.service + 2 * SHARE * C;
    }
    let outcome = check(&load).unwrap();
    // Arrivals during a rest are left out. A look at the clock between two polls, which has come
    // too late for its poll, begins a rest.
    let noticed =
        |wait: &&Wait| wait.watcher == WatcherState::Listens && !wait.lacked && !wait.turned;
    let waits: Vec<_> = outcome.waits.iter().filter(noticed).collect();
    println!("{} of {}", waits.len(), outcome.waits.len());
    assert!(waits.len() > 10_000);
    let waited: u64 = waits.iter().map(|wait| wait.waited).sum();
    let needed = waits.iter().map(|wait| wait.needed);
    let ideal: u64 = needed.map(|needed| needed.min(C)).sum();
    waited as f64 / ideal as f64
}

/// Theorem 1, for the mean over arrivals that are independent of the polls. The ratio is below 3
/// for all service times. It is largest for polls that end just after they have used the cost of a
/// suspension, *C*.
#[test]
fn the_mean_wait_is_below_three_times_that_of_the_ideal_decision() {
    let worst = mean_ratio(Service::Fixed(C + C / 50));
    println!("just above C: {worst:.3}");
    assert!((2.5..3.0).contains(&worst), "just above C: {worst}");
    for (service, most) in [
        (Service::Fixed(C / 2), 1.001),
        (Service::Fixed(2 * C), 1.8),
        (Service::Fixed(10 * C), 1.15),
        (Service::Exponential(C / 2), 1.8),
        (Service::Exponential(C), 1.8),
        (Service::Exponential(10 * C), 1.3),
        (Service::Bimodal(C / 40, 25 * C), 1.3),
    ] {
        let ratio = mean_ratio(service);
        println!("{service:?}: {ratio:.3}");
        assert!(ratio <= most, "{service:?}: {ratio}");
    }
}

fn overhead(outcome: &Outcome) -> f64 {
    let suspensions: usize = outcome.suspended.iter().map(Vec::len).sum();
    (suspensions as u64 * C) as f64 / outcome.end as f64
}

/// Theorem 3: for each quantum, suspensions for polls of the same level take at most their share of
/// the CPU.
#[test]
fn suspensions_after_a_quantum_cost_at_most_their_share() {
    for service in [
        Service::Fixed(50 * C),
        Service::Exponential(10 * C),
        Service::Bimodal(C, 100 * C),
    ] {
        for quantum in [0, 5 * C, 30 * C] {
            let shape = Shape {
                quantum,
                polls: 4_000,
                ..shape(service, Levels::Same, 120)
            };
            let share = overhead(&check(&shape.load()).unwrap());
            println!("{service:?}, quantum {quantum}: {share:.3}");
            assert!(share <= 1.05 / SHARE as f64, "{service:?}: {share}");
        }
    }
}

fn poll(at: u64, level: u8, service: u64) -> Arrival {
    Arrival {
        at,
        level,
        service,
        sleeps: None,
    }
}

fn load(arrivals: Vec<Arrival>, late: u64) -> Load {
    Load {
        cost: C,
        quantum: 0,
        late,
        look: 0,
        expects_urgent: true,
        slow: 1,
        vcpus: 1,
        arrivals,
    }
}

/// Returns the bound on the time between two turns of a suspended poll while another poll does not
/// end. The watcher checks for due turns every [`MAX_SUSPENSION`], and a poll counts as spinning
/// only once it has run for [`MAX_SUSPENSION`] since it was resumed.
fn apart(late: u64) -> u64 {
    2 * MAX_SUSPENSION + 2 * C + 3 * late
}

/// Theorem 4: suspended polls get turns beside a poll that does not end, each within the bound
/// times the number of suspended polls.
#[test]
fn suspended_polls_get_turns_beside_a_poll_that_does_not_end() {
    for (suspended, late) in [(1, 0), (2, 50_000), (5, 100_000), (20, 0)] {
        // Each poll is suspended for the next; the last poll does not end.
        let mut arrivals: Vec<_> = (0..suspended)
            .map(|n| poll(n * 3 * C, 60 - n as u8, 20 * TURN_LENGTH))
            .collect();
        arrivals.push(poll(suspended * 3 * C, 1, 400 * MAX_SUSPENSION * suspended));
        let outcome = check(&load(arrivals, late)).unwrap();
        let (turns, off) = (outcome.turns[0], outcome.kept_off);
        println!("{suspended}: {turns} turns, kept off {off}");
        assert!(turns >= 9 * suspended, "{suspended}: {turns} turns");
        assert!(off <= apart(late), "{suspended}: {off}");
    }
}

/// Theorem 2: long polls of one level share the CPU in turns.
#[test]
fn long_polls_of_a_level_take_turns() {
    for polls in [2, 5, 20] {
        let arrivals = (0..polls)
            .map(|n| poll(n * 3 * C, 20, 40 * MAX_SUSPENSION))
            .collect();
        let outcome = check(&load(arrivals, 0)).unwrap();
        let (turns, off) = (outcome.turns[0], outcome.kept_off);
        let suspended = outcome.suspended[0].len() as u64;
        println!("{polls}: {suspended} suspended, {turns} turns, kept off {off}");
        // Each poll is suspended for the next, which has not used its quantum; then all take turns.
        assert!(suspended < polls && turns >= 20 * (polls - 1));
        assert!(off <= apart(0), "{polls}: {off}");
    }
}

/// Theorem 4: turns are further apart while no visible work depends on the suspended poll. Short
/// and more urgent polls take the whole CPU.
#[test]
fn a_suspended_poll_gets_turns_beside_short_polls() {
    let mut arrivals = vec![poll(0, 60, 10 * TURN_LENGTH)];
    arrivals.extend((0..400_000).map(|n| poll(2 * C + n * C / 8, 1, C / 8)));
    let busy = 400_000 * C / 8;
    let outcome = run_load(&load(arrivals, 0));
    assert!(outcome.end < busy + busy / 10);
    let most = REST_LENGTH + 3 * MAX_SUSPENSION + TURN_LENGTH + 3 * C;
    assert!(outcome.kept_off <= most, "{} > {most}", outcome.kept_off);
}

#[test]
fn a_poll_that_sleeps_is_set_aside() {
    let sleeps = Arrival {
        sleeps: Some(100 * MAX_SUSPENSION),
        ..poll(0, 1, 2 * C)
    };
    let outcome = check(&load(vec![sleeps, poll(10, 30, C)], 1_000)).unwrap();
    assert_eq!(outcome.set_aside[0], 1);
}

/// The watcher looks rarely, since it also rests if the next poll has begun, and another has
/// arrived behind it, before the timer for a poll expires.
#[test]
fn short_polls_behind_which_others_always_wait_cause_few_looks() {
    for levels in [1, 2] {
        let arrivals =
            (0..50_000).map(|n| poll(n * C / 2, 20 + (n % levels) as u8, C / 2 + C / 20));
        let outcome = run_load(&load(arrivals.collect(), 0));
        let looks = outcome.by_event + outcome.by_clock;
        println!("{levels}: {looks} looks in {} ns", outcome.end);
        assert!(looks <= 1_000, "{levels}: {looks}");
    }
}
