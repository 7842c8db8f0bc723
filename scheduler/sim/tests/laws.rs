//! Tests each law of the simulator with generated cases, for about a second per law. `cargo xtask
//! soak` runs a million cases.

use upshift_core::{Floor, Level};
use upshift_sim::{Family, Law, Machine, Op, Program, Workload, search, simulate};

const LAWS: [Law; 5] = [
    Law::Order,
    Law::Conservation,
    Law::Progress,
    Law::Floor,
    Law::Truth,
];
/// Number of generated cases per law and family.
const CASES: u32 = if cfg!(debug_assertions) { 250 } else { 4_000 };

/// Asserts that the law holds in generated cases of the family, without and with preemption.
fn assert_holds(law: Law, family: Family) {
    let others: Vec<Law> = LAWS.into_iter().filter(|other| *other != law).collect();
    for family in [family, family.preemptible()] {
        if let Err(counterexample) = search(family, CASES, law as u64, &others) {
            panic!("{counterexample}");
        }
    }
}

#[test]
fn order_on_a_vcpu() {
    assert_holds(Law::Order, Family::ONE);
}

#[test]
fn order_across_vcpus() {
    assert_holds(Law::Order, Family::SEVERAL);
}

#[test]
fn conservation_on_a_vcpu() {
    assert_holds(Law::Conservation, Family::ONE);
}

#[test]
fn conservation_across_vcpus() {
    assert_holds(Law::Conservation, Family::SEVERAL);
}

#[test]
fn progress_across_vcpus() {
    assert_holds(Law::Progress, Family::SEVERAL);
}

#[test]
fn progress_on_a_vcpu() {
    assert_holds(Law::Progress, Family::ONE);
}

#[test]
fn floor_on_a_vcpu() {
    assert_holds(Law::Floor, Family::ONE);
}

#[test]
fn floor_across_vcpus() {
    assert_holds(Law::Floor, Family::SEVERAL);
}

#[test]
fn truth_on_a_vcpu() {
    assert_holds(Law::Truth, Family::ONE);
}

#[test]
fn truth_across_vcpus() {
    assert_holds(Law::Truth, Family::SEVERAL);
}

/// The laws hold even if the clock of a CPU is set back once, as it may be when the machine wakes
/// from sleep.
#[test]
fn all_laws_hold_when_the_clock_is_set_back() {
    for family in [Family::ONE, Family::SEVERAL] {
        for family in [family, family.preemptible()] {
            if let Err(counterexample) = search(family.set_back(), CASES, 5, &[]) {
                panic!("{counterexample}");
            }
        }
    }
}

/// A waiter to which a mutex is handed over may have become less urgent since it queued. The
/// waiters behind it have lent their levels to the previous holder, so the new holder must be lent
/// these levels at the handover. (Minimized from a generated case.)
#[test]
fn a_waiter_that_is_handed_a_mutex_is_lent_the_levels_of_the_waiters_behind_it() {
    const LONG: u64 = 2_000_000;
    let holder = Program::at(0, 10, [Op::Lock(0), Op::Yield, Op::Compute(LONG)]);
    let next = Program::at(10, 10, [Op::Lock(0), Op::Compute(LONG)]);
    let urgent = Program::at(20, 10, [Op::Lock(0)]);
    let demoter = Program::at(30, 10, [Op::Reprio(1, 13)]);
    simulate(
        Machine::new(1),
        Workload::new([holder, next, urgent, demoter]),
    )
    .unwrap_or_else(|violation| panic!("{violation}"));
}

/// Polls are not interrupted here, and a poll lowers its own level while another coroutine waits.
/// The simulation judges the poll by the level that it had when it started, so the wait is no
/// violation.
#[test]
fn a_poll_that_lowers_its_level_is_judged_by_its_level_at_the_start() {
    const LONG: u64 = 2_000_000;
    let running = Program::at(0, 11, [Op::Compute(LONG)]);
    let urgent = Program::at(35_362, 0, [Op::Reprio(1, 11), Op::Compute(LONG)]);
    let waiting = Program::at(35_420, 10, [Op::Compute(10_000)]);
    simulate(Machine::new(1), Workload::new([running, urgent, waiting]))
        .unwrap_or_else(|violation| panic!("{violation}"));
}

/// A waiter that becomes more urgent while it queues is queued at its new level, or is polled
/// again. (Minimized from a generated case.)
#[test]
fn a_waiter_that_becomes_more_urgent_while_it_queues_for_a_mutex_has_its_new_level() {
    const DELAYS: [u8; 63] = [
        0, 0, 0, 0, 0, 68, 230, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 27, 0, 82,
        18, 119, 0, 0, 0, 0, 207, 23, 146, 138, 0, 0, 0, 0, 0, 13, 0, 0, 0, 0, 208, 72, 61, 0, 0,
        31, 0, 0, 0, 0, 1, 1, 153, 0, 0,
    ];
    let mut holder = Program::at(0, 10, [Op::Lock(1), Op::Reprio(4, 9), Op::Sleep(10_000)]);
    holder.pinned = true;
    let raiser = Program::at(0, 10, [Op::Compute(500), Op::Spawn(3), Op::Reprio(7, 9)]);
    let raised = Program::at(0, 12, [Op::Lock(1)]);
    let other = Program::at(799, 10, [Op::Lock(1)]);
    let busy = Program::at(0, 10, [Op::Compute(10_000)]);
    let workload = Workload {
        programs: vec![holder, raiser, raised, other, busy],
        delays: DELAYS.to_vec(),
    };
    simulate(Machine::new(4), workload).unwrap_or_else(|violation| panic!("{violation}"));
}

/// A floor reserves a share of the CPU time for batch work. With endless batch and urgent work,
/// batch work gets at least that share, and at most that share goes ahead of urgent work.
#[test]
fn a_floor_holds_beside_endless_urgent_work() {
    let work = |level, length| {
        let ops: Vec<Op> = (0..200)
            .flat_map(|_| [Op::Compute(length), Op::Yield])
            .collect();
        Program::at(0, level, ops)
    };
    for percent in [5, 10, 30, 60] {
        for (urgent, batch) in [(20_000, 20_000), (3_000, 150_000), (300_000, 2_000)] {
            let machine = Machine {
                floor: Some(Floor {
                    from: Level::at::<32>(),
                    percent,
                    quantum: 200_000,
                }),
                ..Machine::new(1)
            };
            let workload = Workload::new([work(3, urgent), work(3, urgent), work(40, batch)]);
            simulate(machine, workload).unwrap_or_else(|violation| panic!("{violation}"));
        }
    }
}
