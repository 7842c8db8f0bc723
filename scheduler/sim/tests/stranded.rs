//! Tests that parked vCPUs examine the other vCPUs (*look* at them). Otherwise work would wait
//! until the end of a long poll while a vCPU idles.

use upshift_sim::{Law, Machine, Op, Program, Workload, simulate};

const MS: u64 = 1_000_000;
/// Length of a long poll.
const LONG: u64 = 5 * MS;

/// Asserts that no coroutine waits for longer than the law of conservation allows, but that one of
/// them does if parked vCPUs do not look at other vCPUs.
fn assert_needs_looks(programs: impl Into<Vec<Program>>) {
    let machine = Machine::new(2);
    let workload = Workload::new(programs);
    match simulate(machine, workload.clone()) {
        Ok(longest) => assert!(longest.while_idle <= machine.conservation_bound()),
        Err(violation) => panic!("{violation}"),
    }
    let violation = simulate(
        Machine {
            long_poll_after: 0,
            ..machine
        },
        workload,
    )
    .unwrap_err();
    assert_eq!(violation.law, Law::Conservation, "{violation}");
}

#[test]
fn a_child_of_a_long_poll_beside_a_parked_vcpu() {
    let child = Program::child(20, [Op::Compute(1_000)]);
    let parent = [Op::Spawn(1), Op::Compute(LONG), Op::Join(1)];
    assert_needs_looks([Program::at(MS, 20, parent), child]);
}

#[test]
fn a_less_urgent_child_of_a_long_poll() {
    let child = Program::child(50, [Op::Compute(1_000)]);
    assert_needs_looks([
        Program::at(MS, 20, [Op::Spawn(1), Op::Compute(LONG)]),
        child,
    ]);
}

#[test]
fn a_coroutine_woken_through_a_channel_by_a_long_poll() {
    let waiting = Program::at(0, 20, [Op::Wait(0), Op::Compute(1_000)]);
    let waking = [Op::Signal(0), Op::Compute(LONG)];
    assert_needs_looks([waiting, Program::at(MS, 20, waking)]);
}

#[test]
fn a_timer_of_a_vcpu_in_a_long_poll() {
    // The first parked vCPU polls both coroutines.
    let sleeper = Program::at(MS, 10, [Op::Sleep(MS), Op::Compute(1_000)]);
    assert_needs_looks([sleeper, Program::at(MS + MS / 2, 40, [Op::Compute(LONG)])]);
}

#[test]
fn data_on_the_ring_of_a_vcpu_in_a_long_poll() {
    let receiver = Program::at(MS, 10, [Op::Receive(MS), Op::Compute(1_000)]);
    assert_needs_looks([receiver, Program::at(MS + MS / 2, 40, [Op::Compute(LONG)])]);
}

#[test]
fn a_parent_that_blocks_on_its_child() {
    let child = Program::child(20, [Op::Compute(1_000)]);
    assert_needs_looks([Program::at(MS, 20, [Op::Spawn(1), Op::Block(1)]), child]);
}
