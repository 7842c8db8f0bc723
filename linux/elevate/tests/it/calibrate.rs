//! Calibration on the real machine: bounded, complete, and leaving nothing behind.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use upshift_elevate::sys::{CpuSet, Kernel, Sys};
use upshift_elevate::{CalibrateError, Calibration, LONGEST_CALIBRATION, Policy, Priority, Rights};

use crate::process::PATIENCE;

#[test]
fn calibration_measures_everything_in_bounded_time_and_leaves_nothing() {
    let rights = Rights::probe();
    println!("{rights}");
    if let Err(missing) = rights.require(Priority::of::<3>()) {
        crate::skipped(format_args!("{missing}"));
        return;
    }
    let before = Policy::of(&Kernel, 0).unwrap();
    let found = patiently(|| Calibration::measure(None));
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
    // Noise can hide the cost of looks in a single calibration.
    let mut looks = (0..5).map(|_| patiently(|| Calibration::measure(None)).look_cost());
    assert!(looks.any(|look| !look.is_zero()));
    let brief = patiently(Calibration::measure_briefly);
    println!("brief: {brief:?}, floor {:?}", brief.quantum_floor());
    assert_eq!(brief.timers.len(), found.timers.len());
    let brief = (0..5).map(|_| patiently(Calibration::measure_briefly).took);
    assert!(brief.min().unwrap() < found.took);
    assert_eq!(Policy::of(&Kernel, 0).unwrap(), before);
}

#[test]
fn ordinary_threads_run_several_times_during_a_calibration() {
    if let Err(missing) = Rights::probe().require(Priority::of::<3>()) {
        crate::skipped(format_args!("{missing}"));
        return;
    }
    let cpu = Kernel.sched_getaffinity(0).unwrap().iter().next().unwrap();
    let (ends, runs) = (AtomicBool::new(false), AtomicU32::new(0));
    let runs_between = std::thread::scope(|scope| {
        scope.spawn(|| {
            let only = CpuSet::only(cpu).unwrap();
            Kernel.sched_setaffinity(0, &only).unwrap();
            let mut last = Instant::now();
            while !ends.load(Acquire) {
                std::thread::sleep(Duration::from_millis(1));
                let waited = last.elapsed() > Duration::from_millis(8);
                runs.fetch_add(u32::from(waited), AcqRel);
                last = Instant::now();
            }
        });
        // Elevated threads of other tests can take all pauses of a calibration.
        let mut attempts = (0..20).map(|_| {
            runs.store(0, Release);
            patiently(|| Calibration::measure(Some(cpu)));
            runs.load(Acquire)
        });
        // Without pauses the thread would run once, after the last piece.
        let runs_between = attempts.any(|runs| runs >= 2);
        ends.store(true, Release);
        runs_between
    });
    assert!(runs_between, "no ordinary thread ran between two pieces");
}

/// Tries again while other threads hold the CPU: other tests do, and other programs may.
fn patiently(measure: impl Fn() -> Result<Calibration, CalibrateError>) -> Calibration {
    let began = Instant::now();
    loop {
        match measure() {
            Err(CalibrateError::TooBusy) if began.elapsed() < PATIENCE => {}
            result => return result.unwrap(),
        }
    }
}

#[test]
fn a_cpu_that_is_not_there_is_named() {
    let error = Calibration::measure(Some(5000)).unwrap_err().to_string();
    assert!(error.contains("CPU 5000"), "{error}");
}
