//! Calibration on the real machine: bounded, complete, and leaving nothing behind.

use upshift_elevate::sys::Linux;
use upshift_elevate::{Calibration, LONGEST_CALIBRATION, Policy, Priority, Rights};

#[test]
fn calibration_measures_everything_in_bounded_time_and_leaves_nothing() {
    let rights = Rights::probe();
    println!("{rights}");
    if let Err(missing) = rights.require(Priority::of::<3>()) {
        crate::skipped(format_args!("{missing}"));
        return;
    }
    let before = Policy::of(&Linux, 0).unwrap();
    let found = Calibration::measure(None).unwrap();
    println!("{found:#?}");
    println!("quantum floor {:?}", found.quantum_floor());
    // The machine may stand still meanwhile.
    assert!(found.took <= LONGEST_CALIBRATION * 20);
    assert!(found.switch.samples > 0 && found.switch.p50_ns > 0);
    assert!(found.change.p50_ns > 0 && found.hand_over.p50_ns > 0);
    assert_eq!(found.timers.len(), 6);
    for timer in &found.timers {
        assert!(timer.lateness.samples > 0 && timer.arming.p50_ns > 0);
        assert!(timer.lateness.p99_ns >= timer.lateness.p50_ns);
    }
    assert!(found.switch.p50_ns > found.change.p50_ns);
    assert!(found.look_cost().as_nanos() > 0);
    let brief = Calibration::brief().unwrap();
    println!("brief: {brief:?}, floor {:?}", brief.quantum_floor());
    assert_eq!(brief.timers.len(), found.timers.len());
    let brief = (0..5).map(|_| Calibration::brief().unwrap().took);
    assert!(brief.min().unwrap() < found.took);
    assert_eq!(Policy::of(&Linux, 0).unwrap(), before);
}

#[test]
fn a_cpu_that_is_not_there_is_named() {
    let error = Calibration::measure(Some(5000)).unwrap_err().to_string();
    assert!(error.contains("CPU 5000"), "{error}");
}
