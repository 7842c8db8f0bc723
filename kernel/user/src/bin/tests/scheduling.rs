//! Tests of the order in which programs run, and of their quanta.
//!
//! If [`is_exact`], the machine counts instructions as time, so times and shares are deterministic.
//! Otherwise the host decides when a hart runs, and they are not checked.

use alloc::format;
use alloc::vec::Vec;

use os_user::{Error, now, pipe, read, sleep_micros, spawn, sys, wait};

use crate::{LATER, Outcome, close, ensure, is_exact, is_single, message, run};

pub(crate) fn invalid_levels_are_errors() -> Outcome {
    for level in [64, 256, usize::MAX] {
        let result = sys::set_level(level);
        ensure!(
            result == Err(Error::BadArgument),
            "level {level}: {result:?}"
        );
    }
    // Level 63 is reserved for idle harts.
    ensure!(
        sys::set_level(63) == Err(Error::BadArgument),
        "a process has set its level to 63"
    );
    ensure!(
        spawn("child", b"exit 0", &[], 63).is_err(),
        "a child of level 63 was started"
    );
    let seen = run("urgent 10", &[1, 1], LATER)?;
    ensure!(seen == 0, "a child went above its ceiling");
    Ok(())
}

/// Starts children that write their number when they run. On a single hart, no child runs before
/// this process waits, because the children are less urgent. On several harts, endless loops that
/// are more urgent than the children (the hogs) occupy the harts until all children are ready.
pub(crate) fn more_urgent_process_runs_first() -> Outcome {
    let pipe = pipe().map_err(message)?;
    let mut hogs = Vec::new();
    for _ in 0..8 {
        hogs.push(spawn("child", b"endless", &[], 39).map_err(message)?);
    }
    // Wait until each hart runs a hog.
    sleep_micros(5_000);
    let mut children = Vec::new();
    for (number, level) in [(0, 50), (1, 45), (2, 60), (3, 42)] {
        let argument = format!("note {number}");
        let files = [0, pipe.writer];
        children.push(spawn("child", argument.as_bytes(), &files, level).map_err(message)?);
    }
    // With the end of the hogs, several harts become free, each at its own time, so the order is
    // checked only on a single hart.
    for hog in &hogs {
        sys::kill(*hog).map_err(message)?;
    }
    let mut order = [0; 4];
    let mut count = 0;
    while count < order.len() {
        count += read(pipe.reader, &mut order[count..]).map_err(message)?;
    }
    for child in children.into_iter().chain(hogs) {
        wait(child).map_err(message)?;
    }
    close(pipe.reader)?;
    close(pipe.writer)?;
    ensure!(
        !is_single() || &order == b"3102",
        "ran in the order {order:?}"
    );
    Ok(())
}

pub(crate) fn equal_levels_share_the_hart() -> Outcome {
    let mut pipes = Vec::new();
    let mut children = Vec::new();
    let task: &[u8] = if is_exact() {
        b"share 200"
    } else {
        b"share 20"
    };
    for _ in 0..3 {
        let pipe = pipe().map_err(message)?;
        children.push(spawn("child", task, &[0, pipe.writer], LATER).map_err(message)?);
        close(pipe.writer)?;
        pipes.push(pipe.reader);
    }
    let mut shares = Vec::new();
    for (child, reader) in children.into_iter().zip(pipes) {
        let mut share = [0; 8];
        ensure!(read(reader, &mut share) == Ok(8), "no answer");
        shares.push(u64::from_le_bytes(share));
        wait(child).map_err(message)?;
        close(reader)?;
    }
    let smallest = shares.iter().min().copied().unwrap_or(0);
    let largest = shares.iter().max().copied().unwrap_or(0);
    ensure!(
        !is_exact() || (smallest > 0 && smallest * 4 > largest),
        "the children ran for {shares:?} ticks"
    );
    Ok(())
}

pub(crate) fn floating_point_survives_preemption() -> Outcome {
    let mut children = Vec::new();
    for seed in 1..6 {
        let argument = format!("float {seed}");
        children.push(spawn("child", argument.as_bytes(), &[1, 1], LATER).map_err(message)?);
    }
    for child in children {
        ensure!(
            wait(child).map_err(message)? == 0,
            "a child has lost its floating-point state"
        );
    }
    Ok(())
}

/// A process whose coroutine spins at level 40 yields to level 35 of another process at once, but
/// not to level 45.
pub(crate) fn process_is_as_urgent_as_its_coroutines() -> Outcome {
    let start = now();
    let spinning = spawn("coroutines", b"spin", &[1, 1], 40).map_err(message)?;
    let later = spawn("child", b"exit 0", &[1, 1], 45).map_err(message)?;
    let sooner = spawn("child", b"exit 0", &[1, 1], 35).map_err(message)?;
    wait(sooner).map_err(message)?;
    let sooner_ticks = now() - start;
    wait(later).map_err(message)?;
    let later_ticks = now() - start;
    wait(spinning).map_err(message)?;
    let quarter_second = os_user::ticks_per_second() / 4;
    // The host may stop the harts for a quarter of a second.
    ensure!(
        sooner_ticks < quarter_second || !is_exact(),
        "the more urgent child took {sooner_ticks} ticks"
    );
    ensure!(
        !is_single() || later_ticks >= quarter_second,
        "the less urgent child took {later_ticks} ticks"
    );
    Ok(())
}

pub(crate) fn sleep_is_never_short() -> Outcome {
    for micros in [0, 50, 1_000, 20_000] {
        let start = now();
        sleep_micros(micros);
        let slept = now() - start;
        let requested = micros * os_user::ticks_per_second() / 1_000_000;
        ensure!(slept >= requested, "{slept} ticks instead of {requested}");
    }
    Ok(())
}

/// Measures the time from the deadline until the sleeping program runs, while an endless loop
/// occupies the hart. The time covers the interrupt, the kernel coroutine, the preemption of the
/// loop and the switch to the sleeper.
pub(crate) fn urgent_wake_preempts_a_program_at_once() -> Outcome {
    let hog = spawn("child", b"endless", &[], LATER).map_err(message)?;
    let mut max_delay = 0;
    for n in 0..20 {
        let deadline = now() + 1_000 + 37 * n;
        sys::sleep_until(deadline as usize).map_err(message)?;
        max_delay = max_delay.max(now() - deadline);
    }
    sys::kill(hog).map_err(message)?;
    wait(hog).map_err(message)?;
    // On an exact machine, a tick is 100 instructions; the quantum is 50,000 ticks.
    ensure!(
        !is_exact() || max_delay <= 100,
        "up to {max_delay} ticks late"
    );
    Ok(())
}

/// While a program makes a long call, a more urgent thread does not wait for the end of the call.
pub(crate) fn long_calls_do_not_keep_the_hart() -> Outcome {
    if !is_exact() {
        return Ok(());
    }
    // The limits are in ticks. The exit of a process with all its pages takes most of the first
    // limit.
    for (task, limit) in [("map 3000", 10_000), ("print 65536", 2_500)] {
        let child = spawn("child", task.as_bytes(), &[1, 1], 60).map_err(message)?;
        let mut max_delay = 0;
        for n in 0..300 {
            let deadline = now() + 500 + n % 37;
            sys::sleep_until(deadline as usize).map_err(message)?;
            max_delay = max_delay.max(now() - deadline);
        }
        ensure!(wait(child) == Ok(0), "{task} has failed");
        ensure!(max_delay <= limit, "{task}: up to {max_delay} ticks late");
    }
    Ok(())
}
