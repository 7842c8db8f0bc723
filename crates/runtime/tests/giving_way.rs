//! Where a coroutine that gives way goes on: before its equals, until its quantum is used.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use upshift::sync::{Notify, mpsc};
use upshift::{Level, Runtime};

const URGENT: Level = Level::at::<3>();
const EQUALS: Level = Level::at::<40>();

/// Two equals that make something more urgent ready again and again, and give way to it: in which order they ran.
fn order(quantum: Duration) -> String {
    let builder = Runtime::builder().vcpus(1).quantum(quantum);
    let ran = Arc::new(Mutex::new(String::new()));
    builder.build().unwrap().block_on(async {
        let called = Arc::new(Notify::new());
        let urgent = {
            let (called, ran) = (called.clone(), ran.clone());
            async move {
                loop {
                    called.notified().await;
                    ran.lock().unwrap().push('u');
                }
            }
        };
        let urgent = upshift::spawn(urgent, URGENT);
        // It waits before the others begin.
        upshift::yield_now().await;
        // Not by their handles, which would lend one of them the level of this coroutine.
        let (done, mut both) = mpsc::channel(2);
        for name in ['a', 'b'] {
            let (called, ran, done) = (called.clone(), ran.clone(), done.clone());
            let works = async move {
                for _ in 0..4 {
                    ran.lock().unwrap().push(name);
                    called.notify_one();
                    upshift::yield_if_needed().await;
                }
                done.send(()).await.unwrap();
            };
            upshift::spawn(works, EQUALS).detach();
        }
        for _ in 0..2 {
            both.recv().await.unwrap();
        }
        urgent.cancel();
    });
    std::mem::take(&mut *ran.lock().unwrap())
}

#[test]
fn what_gives_way_to_the_more_urgent_goes_on_before_its_equals() {
    assert_eq!(order(Duration::from_secs(60)), "auauauaububububu");
}

#[test]
fn what_has_used_its_quantum_goes_behind_its_equals() {
    assert_eq!(order(Duration::ZERO), "aubuaubuaubuaubu");
}

/// Many polls that give way in place are one turn.
#[test]
fn a_quantum_goes_over_all_polls_of_a_turn() {
    let builder = Runtime::builder()
        .vcpus(1)
        .quantum(Duration::from_millis(20));
    let others = builder.build().unwrap().block_on(async {
        let called = Arc::new(Notify::new());
        let hears = called.clone();
        let urgent = upshift::spawn(
            async move {
                loop {
                    hears.notified().await;
                }
            },
            URGENT,
        );
        upshift::yield_now().await;
        let (done, mut ended) = mpsc::channel(2);
        let tells = done.clone();
        let busy = async move {
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(500) {
                called.notify_one();
                upshift::yield_if_needed().await;
            }
            tells.send(began.elapsed()).await.unwrap();
        };
        let began = std::time::Instant::now();
        upshift::spawn(busy, EQUALS).detach();
        let waits = async move { done.send(began.elapsed()).await.unwrap() };
        upshift::spawn(waits, EQUALS).detach();
        let first = ended.recv().await.unwrap();
        ended.recv().await.unwrap();
        urgent.cancel();
        first
    });
    // It would be 500 ms without the quantum.
    assert!(others < Duration::from_millis(400), "{others:?}");
}
