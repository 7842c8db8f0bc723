//! A program that replaces the handler of the runtime's signal after a while: from then on the
//! runtime is cooperative, and every party still makes progress. Each number of vCPUs has a process
//! of its own, since the handler belongs to the process.

use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::{Runtime, sync};

use crate::child::child;
use crate::cpu;
use crate::handler;
use crate::parties::{LAZY, MIDDLE, Parties, URGENT, alone, burn, micros, preemptible, seconds};
use crate::pause;

/// Name of the variable with the number of vCPUs, in a process that runs the body of the test.
const INSIDE: &str = "UPSHIFT_TORTURE_CHILD";

/// Number of steps of each party after which the runtime has found the handler replaced: each step
/// of one party lasts several times as long as the runtime waits for an answer to its signal.
const MORE: u64 = 20;

#[test]
fn a_program_that_replaces_the_handler_after_a_while() {
    if let Ok(vcpus) = std::env::var(INSIDE) {
        return replaces_the_handler(vcpus.parse().unwrap());
    }
    let _alone = alone();
    if preemptible(1).is_none() {
        return;
    }
    for vcpus in ["1", "2"] {
        let name = "replaced::a_program_that_replaces_the_handler_after_a_while";
        let output = child(name).env(INSIDE, vcpus).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let status = output.status;
        assert!(status.success(), "{vcpus} vCPUs: {status}: {said}");
        let reports = said.matches("replaced the handler").count();
        assert_eq!(reports, 1, "{vcpus} vCPUs: {said}");
        print!("{}", String::from_utf8(output.stdout).unwrap());
    }
}

fn replaces_the_handler(vcpus: usize) {
    // Ends a process that hangs, long after its time.
    let limit = 600 + 2 * seconds().as_secs() as libc::c_uint;
    // SAFETY: no pointers.
    unsafe { libc::alarm(limit) };
    let runtime = preemptible(vcpus).unwrap();
    let mut parties = Parties::default();
    start(&runtime, &mut parties);
    let third = seconds() / 3;
    let steps = parties.run(&runtime, move |observer| {
        observer.until(third, 1);
        handler::replace(handler::own as *const () as usize);
        observer.until(2 * third, MORE);
    });
    let stats = runtime.handle().preemption_stats();
    println!("{vcpus} vCPUs: steps {steps:?}; {stats:?}");
}

/// Starts parties that wait between their steps, and leave time for the less urgent ones.
fn start(runtime: &Runtime, parties: &mut Parties) {
    // Each step is long enough to be interrupted twice.
    let long = || cpu::burn(Duration::from_millis(10));
    parties.party(runtime, LAZY, long, pause);
    let lock = Arc::new(Mutex::new(0u64));
    let hold = |time| {
        let lock = lock.clone();
        move || {
            let mut held = lock.lock().unwrap();
            burn(micros(time));
            *held += 1;
        }
    };
    parties.party(runtime, LAZY, hold(300), pause);
    parties.resting_party(runtime, MIDDLE, hold(100));
    parties.resting_party(runtime, URGENT, hold(0));
    parties.outsider(runtime, hold(0));
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
    parties.party(runtime, LAZY, || burn(micros(50)), send);
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
