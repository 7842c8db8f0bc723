//! Tests of a program that replaces the handler of the signal by which the runtime suspends polls.
//! From then on the runtime is cooperative, and every coroutine must still make progress. Each
//! number of vCPUs is tested in a child process, because the handler belongs to the process. A
//! *party* is a coroutine or thread that repeats a step (`parties.rs`).

use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::{Runtime, sync};

use crate::child::child;
use crate::cpu;
use crate::handler;
use crate::parties::{
    BACKGROUND, MIDDLE, Parties, URGENT, burn, duration, lock_machine, micros, preemptible,
};
use crate::pause;

/// Environment variable with the number of vCPUs; set in the child process that runs the body of
/// the test.
const CHILD_VCPUS: &str = "UPSHIFT_TORTURE_CHILD";

/// Number of steps per party after which the runtime has certainly detected the replaced handler.
/// It suffices because a step of one party lasts several times as long as the runtime waits for an
/// answer to its signal.
const STEPS_AFTER_REPLACEMENT: u64 = 20;

#[test]
fn parties_make_progress_after_the_handler_was_replaced() {
    if let Ok(vcpus) = std::env::var(CHILD_VCPUS) {
        return run_with_replaced_handler(vcpus.parse().unwrap());
    }
    let _lock = lock_machine();
    if preemptible(1).is_none() {
        return;
    }
    for vcpus in ["1", "2"] {
        let name = "replaced::parties_make_progress_after_the_handler_was_replaced";
        let output = child(name).env(CHILD_VCPUS, vcpus).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let status = output.status;
        assert!(status.success(), "{vcpus} vCPUs: {status}: {stderr}");
        let reports = stderr.matches("replaced the handler").count();
        assert_eq!(reports, 1, "{vcpus} vCPUs: {stderr}");
        print!("{}", String::from_utf8(output.stdout).unwrap());
    }
}

fn run_with_replaced_handler(vcpus: usize) {
    // The alarm ends a process that hangs.
    let limit = 600 + 2 * duration().as_secs() as libc::c_uint;
    // SAFETY: `alarm` takes no pointer.
    unsafe { libc::alarm(limit) };
    let runtime = preemptible(vcpus).unwrap();
    let mut parties = Parties::default();
    add_parties(&runtime, &mut parties);
    let third = duration() / 3;
    let steps = parties.run(&runtime, move |observer| {
        observer.wait_for(third, 1);
        handler::replace(handler::do_nothing as *const () as usize);
        observer.wait_for(2 * third, STEPS_AFTER_REPLACEMENT);
    });
    let stats = runtime.handle().preemption_stats();
    println!("{vcpus} vCPUs: steps {steps:?}; {stats:?}");
}

/// Adds parties that pause between their steps, and leave time for the less urgent parties.
fn add_parties(runtime: &Runtime, parties: &mut Parties) {
    // A step is long enough to be interrupted twice.
    let long_step = || cpu::burn(Duration::from_millis(10));
    parties.party(runtime, BACKGROUND, long_step, pause);
    let lock = Arc::new(Mutex::new(0u64));
    let step_under_lock = |time_us| {
        let lock = lock.clone();
        move || {
            let mut held = lock.lock().unwrap();
            burn(micros(time_us));
            *held += 1;
        }
    };
    parties.party(runtime, BACKGROUND, step_under_lock(300), pause);
    parties.resting_party(runtime, MIDDLE, step_under_lock(100));
    parties.resting_party(runtime, URGENT, step_under_lock(0));
    parties.outsider(runtime, step_under_lock(0));
    parties.resting_party(runtime, MIDDLE, || {
        for length in 0..200 {
            black_box(vec![0u8; 100 + 40 * length]);
        }
    });
    let (sender, receiver) = sync::mpsc::channel(16);
    let send = move || {
        let sender = sender.clone();
        async move { _ = sender.send(1u64).await }
    };
    parties.party(runtime, BACKGROUND, || burn(micros(50)), send);
    let receiver = Arc::new(sync::Mutex::new(receiver));
    let receive = move || {
        let receiver = receiver.clone();
        async move {
            let _ = receiver.lock().await.recv().await;
            pause().await;
        }
    };
    parties.party(runtime, MIDDLE, || (), receive);
    let pipe = Arc::new(sync::Mutex::new(upshift::io::pipe().unwrap()));
    let echo = move || {
        let pipe = pipe.clone();
        async move {
            let (reader, writer) = &mut *pipe.lock().await;
            writer.write_all(b"x").await.unwrap();
            reader.read_exact(&mut [0]).await.unwrap();
            pause().await;
        }
    };
    parties.party(runtime, URGENT, || (), echo);
}
