//! The program that the tests start. Its argument selects the action.

#![no_std]
#![no_main]

extern crate alloc;

use os_user::{
    Error, exit, layout, now, println, read, sleep_micros, spawn, sys, ticks_per_second, write,
};

os_user::entry!(main);

fn main() -> isize {
    let argument = core::str::from_utf8(os_user::argument()).unwrap_or("");
    let (action, rest) = argument.split_once(' ').unwrap_or((argument, ""));
    match action {
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
        "note" => write(1, rest.as_bytes()).map_or(1, |_| 0),
        "late" => {
            sleep_micros(rest.parse().unwrap_or(0));
            write(1, b"!").map_or(1, |_| 0)
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
        "map" => sys::map(rest.parse().unwrap_or(1)).map_or(1, |_| 0),
        "print" => print(rest.parse().unwrap_or(1)),
        "thread" => start_thread(rest),
        "handler" => set_invalid_handler(rest.parse().unwrap_or(0)),
        "ring" => forge_ring(rest.parse().unwrap_or(0)),
        "untrue-trace" => forge_trace(),
        "critical" => {
            os_user::lock::enter();
            loop {
                core::hint::spin_loop();
            }
        }
        _ => {
            println!("child: unknown action `{argument}`");
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

/// Runs for `millis` milliseconds and writes to descriptor 1 the number of ticks in which the
/// process had a hart. A gap of 0.5 ms or more between two readings of the clock counts as time
/// without a hart.
fn share(millis: u64) -> isize {
    let gap = ticks_per_second() / 2_000;
    let end = now() + millis * ticks_per_second() / 1000;
    let (mut last, mut running) = (now(), 0);
    while last < end {
        let time = now();
        if time - last < gap {
            running += time - last;
        }
        last = time;
    }
    write(1, &running.to_le_bytes()).map_or(1, |_| 0)
}

/// Maps memory until the kernel refuses, and writes to each mapping.
fn hog() -> isize {
    loop {
        match sys::map(16) {
            // SAFETY: the kernel has just mapped these pages, and nothing else uses them.
            Ok(start) => unsafe { (start as *mut u64).write_volatile(1) },
            Err(Error::OutOfMemory) => return 0,
            Err(_) => return 1,
        }
    }
}

/// Adds floating-point numbers for 50 ms, long enough to be interrupted, and checks the sum,
/// because the kernel must preserve the floating-point registers.
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
    // The comparison is exact, because both are integers below 2⁵³.
    isize::from(sum != step * steps as f64)
}

/// Starts a child and exits before the child does.
fn orphan() -> isize {
    spawn("child", b"sleep 20000", &[], 40).map_or(1, |_| 0)
}

fn fault(kind: &str) -> isize {
    match kind {
        // SAFETY: no access below is sound; each must end the process before `fault` returns.
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
        "stack" => overflow_stack(0),
        _ => exit(2),
    }
}

/// Writes a line of `len` spaces at once.
fn print(len: usize) -> isize {
    let mut line = alloc::vec![b' '; len];
    line.push(b'\n');
    write(1, &line).map_or(1, |_| 0)
}

/// Starts a thread with an invalid entry or stack.
fn start_thread(kind: &str) -> isize {
    let text = layout::IMAGE;
    let kernel = 0xffff_ffc0_8020_0000;
    let (entry, stack) = match kind {
        "entry" => (8, layout::STACK_TOP - 4096),
        "kernel" => (kernel, layout::STACK_TOP - 4096),
        "stack" => (text, 0),
        "upper" => (text, kernel),
        _ => return 2,
    };
    if sys::thread_create(entry, stack, 0).is_err() {
        return 1;
    }
    loop {
        sleep_micros(10_000);
    }
}

/// Writes a word of the page that the process shares with the kernel.
fn forge(word: usize, value: usize) {
    let target = (layout::SHARED as *mut usize).wrapping_add(word);
    // SAFETY: the page is mapped and writable; the kernel validates each word that it reads there.
    unsafe { target.write_volatile(value) };
}

/// Starts an asynchronous call without awaiting it.
fn start_call(number: usize, arguments: [usize; 3]) -> Result<isize, Error> {
    let [a, b, c] = arguments;
    let number = number | os_user::number::ASYNCHRONOUS;
    sys::raw_with(number, [a, b, c, 0, 0, usize::MAX], usize::MAX)
}

/// Makes `address`, which is not that of a handler, the handler of user interrupts, and waits for
/// an interrupt.
fn set_invalid_handler(address: usize) -> isize {
    forge(os_abi::shared::HANDLER, address);
    loop {
        let soon = now() + ticks_per_second() / 1000;
        match start_call(os_user::number::sleep_until, [soon as usize, 0, 0]) {
            // On a slow machine the deadline may have passed before the call. Then the call
            // completes at once and causes no interrupt.
            Ok(os_user::number::COMPLETED) => {}
            Ok(_) => break,
            Err(_) => return 1,
        }
    }
    loop {
        core::hint::spin_loop();
    }
}

/// Overwrites the ring's indices with forged values while it starts calls: a few complete, and as
/// many as possible stay in flight.
fn forge_ring(head: usize) -> isize {
    let Ok(pipe) = os_user::pipe() else { return 1 };
    let mut byte = [0u8; 1];
    let read = [pipe.reader, (&raw mut byte).addr(), 1];
    let mut accepted = 0;
    for round in 0..40usize {
        for _ in 0..10_000 {
            forge(os_abi::shared::RING_HEAD, head);
            forge(os_abi::shared::RING_TAIL, round.wrapping_mul(head));
            forge(os_abi::shared::DRAINING, round % 2);
            if start_call(os_user::number::read, read).is_err() {
                break;
            }
            accepted += 1;
            if accepted % 8 == 0 {
                break;
            }
        }
        let _ = write(pipe.writer, &[1; 4]);
    }
    let error = loop {
        forge(os_abi::shared::RING_HEAD, head);
        match start_call(os_user::number::read, read) {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
    };
    // The forged indices must not raise the limit of calls in flight, so the last call is refused.
    // At most 8 calls in each of 40 rounds and the 4,080 entries of the ring were accepted.
    isize::from(error != Error::TooMany || accepted > 5_000)
}

/// Writes impossible entries into the trace.
fn forge_trace() -> isize {
    for _ in 0..3 {
        for word in 0..4096 / 8 {
            let target = (layout::TRACE as *mut u64).wrapping_add(word);
            // SAFETY: the page of the trace is mapped and writable while the kernel traces, and
            // `word` is inside the page.
            unsafe { target.write_volatile(u64::MAX) };
        }
        let _ = sys::yield_cpu();
    }
    0
}

/// Recurses until the stack is used up.
#[allow(unconditional_recursion, reason = "the stack is to overflow")]
fn overflow_stack(n: isize) -> isize {
    let block = core::hint::black_box([n; 64]);
    overflow_stack(n + 1) + block[3]
}
