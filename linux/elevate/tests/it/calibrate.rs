//! Tests of calibration, which must take bounded time, measure every quantity, and leave all
//! threads as they were.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use upshift_elevate::sys::{CpuSet, Kernel, Sys};
use upshift_elevate::{CalibrateError, Calibration, LONGEST_CALIBRATION, Policy, Priority, Rights};

use crate::process::WAIT_LIMIT;

#[test]
fn calibration_measures_all_quantities_in_bounded_time_and_restores_the_thread() {
    let rights = Rights::probe();
    println!("{rights}");
    if let Err(missing) = rights.require(Priority::of::<3>()) {
        crate::skipped(format_args!("{missing}"));
        return;
    }
    let before = Policy::of(&Kernel, 0).unwrap();
    let calibration = retry_while_busy(|| Calibration::measure(None));
    println!("{calibration:#?}");
    println!("min quantum {:?}", calibration.min_quantum());
    // The bound is generous, because the machine may be stopped meanwhile.
    assert!(calibration.took <= LONGEST_CALIBRATION * 20);
    assert!(calibration.switch.samples > 0 && calibration.switch.p50_ns > 0);
    assert!(calibration.change.p50_ns > 0 && calibration.hand_over.p50_ns > 0);
    assert_eq!(calibration.timers.len(), upshift_elevate::DELAYS_US.len());
    for timer in &calibration.timers {
        assert!(timer.lateness.samples > 0 && timer.arming.p50_ns > 0);
        assert!(timer.lateness.p99_ns >= timer.lateness.p50_ns);
    }
    assert!(calibration.switch.p50_ns > calibration.change.p50_ns);
    // In a single calibration, noise can exceed the cost of looks.
    let mut looks = (0..5).map(|_| retry_while_busy(|| Calibration::measure(None)).look_cost());
    assert!(looks.any(|look| !look.is_zero()));
    let brief = retry_while_busy(Calibration::measure_briefly);
    println!("brief: {brief:?}, min quantum {:?}", brief.min_quantum());
    assert_eq!(brief.timers.len(), calibration.timers.len());
    let brief = (0..5).map(|_| retry_while_busy(Calibration::measure_briefly).took);
    assert!(brief.min().unwrap() < calibration.took);
    assert_eq!(Policy::of(&Kernel, 0).unwrap(), before);
}

#[test]
fn ordinary_threads_run_several_times_during_a_calibration() {
    if let Err(missing) = Rights::probe().require(Priority::of::<3>()) {
        crate::skipped(format_args!("{missing}"));
        return;
    }
    let cpu = Kernel.sched_getaffinity(0).unwrap().iter().next().unwrap();
    let (stop, runs) = (AtomicBool::new(false), AtomicU32::new(0));
    let has_run_in_pauses = std::thread::scope(|scope| {
        scope.spawn(|| {
            let only = CpuSet::only(cpu).unwrap();
            Kernel.sched_setaffinity(0, &only).unwrap();
            let mut last = Instant::now();
            while !stop.load(Acquire) {
                std::thread::sleep(Duration::from_millis(1));
                // A sleep of 1 ms that takes longer than 8 ms lasted until a pause of the
                // calibration, or until the end of the measurement.
                let has_waited = last.elapsed() > Duration::from_millis(8);
                runs.fetch_add(u32::from(has_waited), AcqRel);
                last = Instant::now();
            }
        });
        // Elevated threads of other tests can occupy the CPU in all pauses of a calibration.
        let mut attempts = (0..20).map(|_| {
            runs.store(0, Release);
            retry_while_busy(|| Calibration::measure(Some(cpu)));
            runs.load(Acquire)
        });
        // Without pauses, the ordinary thread would run only once, after the measurement.
        let has_run_in_pauses = attempts.any(|runs| runs >= 2);
        stop.store(true, Release);
        has_run_in_pauses
    });
    assert!(
        has_run_in_pauses,
        "the ordinary thread did not run in the pauses of a calibration"
    );
}

/// Calibrates again while the CPU is occupied by other tests or other programs.
fn retry_while_busy(measure: impl Fn() -> Result<Calibration, CalibrateError>) -> Calibration {
    let began = Instant::now();
    loop {
        match measure() {
            Err(CalibrateError::TooBusy) if began.elapsed() < WAIT_LIMIT => {}
            result => return result.unwrap(),
        }
    }
}

#[test]
fn an_error_for_a_missing_cpu_names_it() {
    let error = Calibration::measure(Some(5000)).unwrap_err().to_string();
    assert!(error.contains("CPU 5000"), "{error}");
}
