//! What the tests start: it does what its argument says.

#![no_std]
#![no_main]

use os_user::{
    Error, exit, layout, now, println, read, sleep_micros, spawn, sys, ticks_per_second, write,
};

os_user::entry!(main);

fn main() -> isize {
    let argument = core::str::from_utf8(os_user::argument()).unwrap_or("");
    let (task, rest) = argument.split_once(' ').unwrap_or((argument, ""));
    match task {
        "exit" => rest.parse().unwrap_or(2),
        "echo" => echo(),
        "endless" => loop {
            core::hint::spin_loop();
        },
        "urgent" => match sys::set_level(rest.parse().unwrap_or(0)) {
            Err(Error::TooUrgent) => 0,
            _ => 1,
        },
        "share" => share(rest.parse().unwrap_or(1)),
        "note" => write(1, rest.as_bytes()).map_or(1, |()| 0),
        "late" => {
            sleep_micros(rest.parse().unwrap_or(0));
            write(1, b"!").map_or(1, |()| 0)
        }
        "hog" => hog(),
        "float" => float(rest.parse().unwrap_or(1)),
        "orphan" => orphan(),
        "yield" => {
            for _ in 0..rest.parse().unwrap_or(1) {
                let _ = sys::yield_cpu();
            }
            0
        }
        "sleep" => {
            sleep_micros(rest.parse().unwrap_or(0));
            0
        }
        "fault" => fault(rest),
        _ => {
            println!("child: what is `{argument}`?");
            2
        }
    }
}

/// Copies descriptor 0 to 1 until the end.
fn echo() -> isize {
    let mut buffer = [0; 256];
    loop {
        match read(0, &mut buffer) {
            Ok(0) => return 0,
            Ok(count) if write(1, &buffer[..count]).is_ok() => {}
            _ => return 1,
        }
    }
}

/// Runs for so many milliseconds and writes to descriptor 1 for how many ticks of
/// them it had a hart: the clock takes small steps then.
fn share(millis: u64) -> isize {
    let step = ticks_per_second() / 2_000;
    let end = now() + millis * ticks_per_second() / 1000;
    let (mut last, mut ran) = (now(), 0);
    while last < end {
        let time = now();
        if time - last < step {
            ran += time - last;
        }
        last = time;
    }
    write(1, &ran.to_le_bytes()).map_or(1, |()| 0)
}

/// Takes all the memory it can get, and uses it.
fn hog() -> isize {
    loop {
        match sys::map(16) {
            // SAFETY: mapped just now.
            Ok(start) => unsafe { (start as *mut u64).write_volatile(1) },
            Err(Error::OutOfMemory) => return 0,
            Err(_) => return 1,
        }
    }
}

/// Computes with all the time in which it may be interrupted.
fn float(seed: u64) -> isize {
    let step = seed as f64;
    let mut sum = 0.0;
    let end = now() + ticks_per_second() / 20;
    let mut steps = 0u64;
    while now() < end {
        for _ in 0..100 {
            sum += core::hint::black_box(step);
            steps += 1;
        }
    }
    // Exact: both are integers below 2⁵³.
    isize::from(sum != step * steps as f64)
}

/// Ends before its child does.
fn orphan() -> isize {
    spawn("child", b"sleep 20000", &[], 40).map_or(1, |_| 0)
}

/// Does what it may not.
fn fault(what: &str) -> isize {
    match what {
        // SAFETY: none of these is sound; each is to end the process.
        "null" => unsafe { core::ptr::without_provenance::<u8>(16).read_volatile() as isize },
        "kernel" => {
            let kernel = 0xffff_ffc0_8020_0000usize as *const u8;
            // SAFETY: as above.
            unsafe { kernel.read_volatile() as isize }
        }
        "text" => {
            // SAFETY: as above.
            unsafe { (fault as *mut u8).write_volatile(0) };
            1
        }
        "info" => {
            // SAFETY: as above.
            unsafe { (os_user::argument().as_ptr().cast_mut()).write_volatile(0) };
            1
        }
        "global" => {
            // SAFETY: as above.
            unsafe { (layout::GLOBAL as *mut u64).write_volatile(0) };
            1
        }
        "vdso" => {
            // SAFETY: as above.
            unsafe { (layout::VDSO as *mut u64).write_volatile(0) };
            1
        }
        "data" => {
            let code = [0x8082u16; 8];
            // SAFETY: as above.
            let f: extern "C" fn() = unsafe { core::mem::transmute(code.as_ptr()) };
            f();
            1
        }
        "privileged" => {
            // SAFETY: as above.
            unsafe { core::arch::asm!("csrw satp, zero") };
            1
        }
        "stack" => deep(0),
        _ => exit(2),
    }
}

/// Recurses until the stack is used up.
#[allow(unconditional_recursion, reason = "that is the point")]
fn deep(n: isize) -> isize {
    let block = core::hint::black_box([n; 64]);
    deep(n + 1) + block[3]
}
