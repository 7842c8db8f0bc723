//! Tests the theorems of `docs/preemption-proofs.md` with random loads. `cargo xtask soak` runs a
//! million loads. Times are in nanoseconds.

use upshift_core::preempt::{MAX_SUSPENSION, REST_LENGTH, SHARE, TURN_LENGTH};
use upshift_sim::suspension::{
    Arrival, Levels, Load, Outcome, Service, Shape, Wait, WatcherState, check, run_load,
    search_loads,
};

/// Number of generated loads.
const CASES: u32 = 10_000;
/// Cost of a suspension, *C* in the proofs.
const SUSPENSION_COST: u64 = 20_000;

#[test]
fn waiting_and_suspending_stay_within_their_bounds() {
    search_loads(CASES, 12).unwrap_or_else(|violation| panic!("{violation}"));
}

fn shape(service: Service, levels: Levels, percent: u64) -> Shape {
    Shape {
        cost: SUSPENSION_COST,
        quantum: 0,
        max_wake_delay: 0,
        look_cost: 0,
        expects_urgent: true,
        slowdown: 1,
        vcpus: 1,
        polls: 40_000,
        service,
        levels,
        percent,
        sleeps_one_in: 0,
        seed: 7,
    }
}

/// Returns the mean wait for less urgent polls, divided by the mean wait under an ideal policy that
/// knows the lengths of polls in advance.
fn mean_ratio(service: Service) -> f64 {
    let mut load = shape(service, Levels::Same, 10).load();
    let mut at = 0;
    let arrivals = std::mem::take(&mut load.arrivals);
    for (n, arrival) in (0_u64..).zip(arrivals) {
        // Multiples of the golden ratio spread the arrivals evenly over the times of the poll.
        let fraction = (n as f64 * 0.618_033_988_75).fract();
        let urgent_at = at + (arrival.service as f64 * fraction) as u64;
        load.arrivals.push(Arrival { at, ..arrival });
        load.arrivals
            .push(poll(urgent_at, 10, SUSPENSION_COST / 40));
        at += 2 * arrival.service + 2 * SHARE * SUSPENSION_COST;
    }
    let outcome = check(&load).unwrap();
    // Arrivals while the watcher rests do not count: the theorem assumes that an arrival wakes the
    // watcher. The watcher begins to rest when its timer fires only after the poll for which it was
    // set has ended. Waits that the budget or a turn prolonged do not count, either.
    let counts = |wait: &&Wait| {
        wait.watcher == WatcherState::Listens && !wait.lacked_budget && !wait.had_turn
    };
    let waits: Vec<_> = outcome.waits.iter().filter(counts).collect();
    println!("{} of {} waits count", waits.len(), outcome.waits.len());
    assert!(waits.len() > 10_000, "only {} waits count", waits.len());
    let total_wait: u64 = waits.iter().map(|wait| wait.waited).sum();
    // The ideal policy suspends a poll at once if the poll needs more than a suspension costs.
    let ideal_waits = waits.iter().map(|wait| wait.needed.min(SUSPENSION_COST));
    let ideal_wait: u64 = ideal_waits.sum();
    total_wait as f64 / ideal_wait as f64
}

/// Theorem 1, for the mean over arrivals that are independent of the polls. The ratio is below 3
/// for all lengths of polls. It is largest for polls that end just after they have used as much CPU
/// time as a suspension costs (*C*).
#[test]
fn the_mean_wait_is_below_three_times_that_of_the_ideal_policy() {
    let worst_ratio = mean_ratio(Service::Fixed(SUSPENSION_COST + SUSPENSION_COST / 50));
    println!("polls just longer than C: ratio {worst_ratio:.3}");
    assert!(
        (2.5..3.0).contains(&worst_ratio),
        "polls just longer than C: ratio {worst_ratio}"
    );
    // Each of the other bounds has a margin over the ratio of its distribution.
    for (service, max_ratio) in [
        (Service::Fixed(SUSPENSION_COST / 2), 1.001),
        (Service::Fixed(2 * SUSPENSION_COST), 1.8),
        (Service::Fixed(10 * SUSPENSION_COST), 1.15),
        (Service::Exponential(SUSPENSION_COST / 2), 1.8),
        (Service::Exponential(SUSPENSION_COST), 1.8),
        (Service::Exponential(10 * SUSPENSION_COST), 1.3),
        (
            Service::Bimodal(SUSPENSION_COST / 40, 25 * SUSPENSION_COST),
            1.3,
        ),
    ] {
        let ratio = mean_ratio(service);
        println!("{service:?}: ratio {ratio:.3}");
        assert!(ratio <= max_ratio, "{service:?}: ratio {ratio}");
    }
}

/// Returns the share of the time that suspensions take.
fn overhead(outcome: &Outcome) -> f64 {
    let suspensions: usize = outcome.suspension_times.iter().map(Vec::len).sum();
    (suspensions as u64 * SUSPENSION_COST) as f64 / outcome.end as f64
}

/// Theorem 3: for each quantum, suspensions for polls of the same level take at most their share of
/// the CPU.
#[test]
fn suspensions_after_a_quantum_cost_at_most_their_share() {
    for service in [
        Service::Fixed(50 * SUSPENSION_COST),
        Service::Exponential(10 * SUSPENSION_COST),
        Service::Bimodal(SUSPENSION_COST, 100 * SUSPENSION_COST),
    ] {
        for quantum in [0, 5 * SUSPENSION_COST, 30 * SUSPENSION_COST] {
            let shape = Shape {
                quantum,
                polls: 4_000,
                ..shape(service, Levels::Same, 120)
            };
            let share = overhead(&check(&shape.load()).unwrap());
            println!("{service:?}, quantum {quantum}: share {share:.3}");
            // The margin of 5 % is for the full budget at the start.
            assert!(share <= 1.05 / SHARE as f64, "{service:?}: share {share}");
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

fn load(arrivals: Vec<Arrival>, max_wake_delay: u64) -> Load {
    Load {
        cost: SUSPENSION_COST,
        quantum: 0,
        max_wake_delay,
        look_cost: 0,
        expects_urgent: true,
        slowdown: 1,
        vcpus: 1,
        arrivals,
    }
}

/// Returns the bound on the time between two turns of a suspended poll while another poll never
/// ends. The watcher checks for due turns every [`MAX_SUSPENSION`], and other work counts as
/// dependent on a suspended poll only once the poll under way has run for [`MAX_SUSPENSION`].
fn max_time_between_turns(max_wake_delay: u64) -> u64 {
    2 * MAX_SUSPENSION + 2 * SUSPENSION_COST + 3 * max_wake_delay
}

/// Theorem 4: suspended polls get turns beside a poll that never ends. Several suspended polls get
/// their turns one after the other, so the model divides the time off the CPU by their number.
#[test]
fn suspended_polls_get_turns_beside_a_poll_that_never_ends() {
    for (suspended, max_wake_delay) in [(1, 0), (2, 50_000), (5, 100_000), (20, 0)] {
        // Each poll is suspended for the next. The last poll runs for much longer than the others
        // need for all their turns.
        let mut arrivals: Vec<_> = (0..suspended)
            .map(|n| poll(n * 3 * SUSPENSION_COST, 60 - n as u8, 20 * TURN_LENGTH))
            .collect();
        arrivals.push(poll(
            suspended * 3 * SUSPENSION_COST,
            1,
            400 * MAX_SUSPENSION * suspended,
        ));
        let outcome = check(&load(arrivals, max_wake_delay)).unwrap();
        let (turns, longest_off) = (outcome.turns[0], outcome.longest_off_cpu);
        println!("{suspended} polls: {turns} turns, longest time off the CPU {longest_off} ns");
        // A poll needs 20 turns of the shortest length; the bound has a margin for longer turns.
        assert!(turns >= 9 * suspended, "{suspended} polls: {turns} turns");
        let bound = max_time_between_turns(max_wake_delay);
        assert!(longest_off <= bound, "{suspended} polls: {longest_off} ns");
    }
}

/// Theorem 2: long polls of one level share the CPU in turns.
#[test]
fn long_polls_of_a_level_take_turns() {
    for polls in [2, 5, 20] {
        let arrivals = (0..polls)
            .map(|n| poll(n * 3 * SUSPENSION_COST, 20, 40 * MAX_SUSPENSION))
            .collect();
        let outcome = check(&load(arrivals, 0)).unwrap();
        let (turns, longest_off) = (outcome.turns[0], outcome.longest_off_cpu);
        let suspensions = outcome.suspension_times[0].len() as u64;
        println!(
            "{polls} polls: {suspensions} suspensions, {turns} turns, longest time off the CPU \
             {longest_off} ns"
        );
        // Each poll is first suspended for its successor, which has not used its quantum. After
        // that, the polls take turns. They need 40 · MAX_SUSPENSION each, and a turn comes about
        // every 2 · MAX_SUSPENSION or sooner; the last poll needs no turns once it is alone.
        assert!(suspensions < polls && turns >= 20 * (polls - 1));
        let bound = max_time_between_turns(0);
        assert!(longest_off <= bound, "{polls} polls: {longest_off} ns");
    }
}

/// Theorem 4: turns come less often while the scheduler knows of no work that depends on the
/// suspended poll. Here, short polls that are more urgent take the whole CPU.
#[test]
fn a_suspended_poll_gets_turns_beside_short_polls() {
    let mut arrivals = vec![poll(0, 60, 10 * TURN_LENGTH)];
    arrivals.extend((0..400_000).map(|n| {
        poll(
            2 * SUSPENSION_COST + n * SUSPENSION_COST / 8,
            1,
            SUSPENSION_COST / 8,
        )
    }));
    let urgent_time = 400_000 * SUSPENSION_COST / 8;
    let outcome = run_load(&load(arrivals, 0));
    // The turns take less than a tenth of the time.
    assert!(outcome.end < urgent_time + urgent_time / 10);
    // The bound of `check`, for a watcher that wakes without delay.
    let max_off_cpu = REST_LENGTH + 3 * MAX_SUSPENSION + TURN_LENGTH + 3 * SUSPENSION_COST;
    let longest_off = outcome.longest_off_cpu;
    assert!(
        longest_off <= max_off_cpu,
        "{longest_off} ns off the CPU; the bound is {max_off_cpu} ns"
    );
}

/// A poll whose thread sleeps while another poll waits is *set aside*: the vCPU continues without
/// it.
#[test]
fn a_poll_that_sleeps_is_set_aside() {
    let sleeping = Arrival {
        sleeps: Some(100 * MAX_SUSPENSION),
        ..poll(0, 1, 2 * SUSPENSION_COST)
    };
    let outcome = check(&load(vec![sleeping, poll(10, 30, SUSPENSION_COST)], 1_000)).unwrap();
    assert_eq!(outcome.set_aside[0], 1);
}

/// The watcher sets a timer for a poll that keeps others waiting. If the poll ends, and an arrival
/// wakes the watcher during the next poll, before the timer expires, the watcher rests. So it looks
/// at few of the polls, although each of them keeps others waiting.
#[test]
fn a_full_queue_of_short_polls_causes_few_looks() {
    for levels in [1, 2] {
        let arrivals = (0..50_000).map(|n| {
            poll(
                n * SUSPENSION_COST / 2,
                20 + (n % levels) as u8,
                SUSPENSION_COST / 2 + SUSPENSION_COST / 20,
            )
        });
        let outcome = run_load(&load(arrivals.collect(), 0));
        let looks = outcome.event_looks + outcome.clock_looks;
        println!("{levels} levels: {looks} looks in {} ns", outcome.end);
        // At most one look in 50 polls.
        assert!(looks <= 1_000, "{levels} levels: {looks} looks");
    }
}
