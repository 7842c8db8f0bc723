//! Tests that preemption works when the time-stamp counter restarts near zero, as after the machine
//! has slept (ACPI S3).
//!
//! `PR_SET_TSC` makes `rdtsc` fault, and the signal handler emulates a counter that can be set
//! back. So this file has one test, which has its own process.
#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::__rdtscp;
use std::hint::spin_loop;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use upshift::{Level, Preemption, Runtime};

/// Number added to the counter.
static OFFSET: AtomicU64 = AtomicU64::new(0);
/// Address range of the vDSO, in which the counter is not set back, so that `CLOCK_MONOTONIC`
/// continues.
static VDSO: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

// Machine code of the instructions that read the counter.
const RDTSC: [u8; 2] = [0x0f, 0x31];
const RDTSCP: [u8; 3] = [0x0f, 0x01, 0xf9];

fn counter() -> (u64, u32) {
    let mut aux = 0;
    // SAFETY: `aux` is a live local, and the counter may be read between the two calls.
    unsafe {
        libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE);
        let ticks = __rdtscp(&raw mut aux);
        libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV);
        (ticks, aux)
    }
}

/// Signal handler that emulates the instruction that has faulted, if that instruction reads the
/// counter.
extern "C" fn emulate_instruction(
    _: libc::c_int,
    _: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: `context` is the kernel's context of this signal, and its instruction can be read.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let address = registers[libc::REG_RIP as usize] as u64;
        let code = std::slice::from_raw_parts(address as *const u8, RDTSCP.len());
        let is_long = code == RDTSCP;
        if !is_long && code[..2] != RDTSC {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            return;
        }
        let (mut ticks, aux) = counter();
        if !(VDSO[0].load(Relaxed)..VDSO[1].load(Relaxed)).contains(&address) {
            ticks = ticks.wrapping_add(OFFSET.load(Relaxed));
        }
        registers[libc::REG_RAX as usize] = (ticks & 0xffff_ffff) as i64;
        registers[libc::REG_RDX as usize] = (ticks >> 32) as i64;
        if is_long {
            registers[libc::REG_RCX as usize] = i64::from(aux);
        }
        registers[libc::REG_RIP as usize] += if is_long { 3 } else { 2 };
    }
}

/// Makes the calling thread, and threads that it starts, read the counter through
/// [`emulate_instruction`].
fn install_emulation() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let vdso = maps.lines().find(|line| line.contains("[vdso]"));
    let range = vdso.and_then(|line| line.split(' ').next()?.split_once('-'));
    if let Some((from, to)) = range {
        VDSO[0].store(u64::from_str_radix(from, 16).unwrap(), Relaxed);
        VDSO[1].store(u64::from_str_radix(to, 16).unwrap(), Relaxed);
    }
    // SAFETY: zeroes are a valid `sigaction`, and the handler calls only `prctl` and `signal`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = emulate_instruction as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
        libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV);
    }
}

/// Runs an urgent coroutine that wakes every 5 ms beside polls of 20 ms. Returns the number of
/// suspensions.
async fn suspensions_beside_long_polls() -> u64 {
    let handle = upshift::Handle::current().unwrap();
    let before = handle.preemption_stats().suspensions;
    let wakes = async {
        for _ in 0..60 {
            upshift::time::sleep(Duration::from_millis(5)).await;
        }
    };
    upshift::spawn(wakes, Level::at::<1>()).await.unwrap();
    handle.preemption_stats().suspensions - before
}

#[test]
fn polls_are_suspended_after_the_counter_was_set_back() {
    // SAFETY: `alarm` takes no pointer.
    unsafe { libc::alarm(120) };
    install_emulation();
    let built = Runtime::builder()
        .vcpus(1)
        .main_level(Level::at::<0>())
        .preemption(Preemption::Required)
        .build();
    let runtime = match built {
        Ok(runtime) => runtime,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let (before, after) = runtime.block_on(async {
        for _ in 0..2 {
            let long = async {
                loop {
                    let began = Instant::now();
                    while began.elapsed() < Duration::from_millis(20) {
                        (0..20_000).for_each(|_| spin_loop());
                    }
                    upshift::yield_now().await;
                }
            };
            upshift::spawn(long, Level::at::<20>()).detach();
        }
        let before = suspensions_beside_long_polls().await;
        let new_count = 1 << 30;
        OFFSET.store(u64::wrapping_sub(new_count, counter().0), Relaxed);
        (before, suspensions_beside_long_polls().await)
    });
    // SAFETY: `prctl` takes no pointer.
    unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE) };
    // Each of the 60 wakes may suspend a poll. The bound leaves a margin for wakes that come
    // between two polls or are delayed.
    assert!(
        before >= 10,
        "{before} suspensions before the counter was set back"
    );
    assert!(
        after >= 10,
        "{after} suspensions after the counter was set back"
    );
}
