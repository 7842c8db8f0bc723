//! Tests the information that a watchdog gets from the core: the poll under way, and the report of
//! its end.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::task::{Context, Poll};

use crate::support::{at, domain, level, run, serving};
use upshift_core::Config;

#[test]
fn a_poll_is_seen_from_another_thread_while_it_lasts() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    domain.host().time.store(500, Ordering::Relaxed);
    assert_eq!(vcpu.current_poll(), None);
    let (begin_sender, begin_receiver) = mpsc::channel();
    let (continue_sender, continue_receiver) = mpsc::channel::<()>();
    let observer = {
        let domain = domain.clone();
        std::thread::spawn(move || {
            begin_receiver.recv().unwrap();
            let poll = domain.vcpus().next().unwrap().current_poll();
            continue_sender.send(()).unwrap();
            poll
        })
    };
    let here = Location::caller();
    let handle = serving(&vcpu, || {
        let future = async move {
            begin_sender.send(()).unwrap();
            continue_receiver.recv().unwrap();
        };
        domain.spawn_at(future, at(9), here).unwrap()
    });
    run(&vcpu, 10);
    let poll = observer.join().unwrap().expect("a poll is under way");
    assert_eq!(poll.id, handle.id());
    assert_eq!(poll.level, level(9));
    assert_eq!(poll.location, here);
    assert_eq!(poll.began, 500);
    assert_eq!(vcpu.current_poll(), None);
}

/// If coroutines of one type are spawned at several source positions, a poll shows the position of
/// its own coroutine.
#[test]
fn coroutines_of_one_type_have_their_own_source_positions() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let first = Location::caller();
    let places = [first, Location::caller(), first, Location::caller()];
    for place in places {
        let (location_sender, location_receiver) = mpsc::channel();
        let inner = domain.clone();
        let look = move || {
            let poll = inner.vcpus().next().unwrap().current_poll();
            location_sender.send(poll.unwrap().location).unwrap();
        };
        let handle = serving(&vcpu, || {
            let future = CallOnce(Some(Box::new(look)));
            domain.spawn_at(future, at(9), place).unwrap()
        });
        run(&vcpu, 10);
        assert_eq!(location_receiver.recv(), Ok(place));
        handle.detach();
    }
}

struct CallOnce(Option<Box<dyn FnOnce() + Send>>);

impl Future for CallOnce {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if let Some(function) = self.0.take() {
            function();
        }
        Poll::Ready(())
    }
}

#[test]
fn only_the_end_of_a_watched_poll_is_reported() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let ids: Vec<_> = (0..3)
        .map(|n| {
            let inner = domain.clone();
            let future = async move {
                inner.host().time.fetch_add(100, Ordering::Relaxed);
                if n == 1 {
                    inner.vcpus().next().unwrap().watch_current_poll();
                }
            };
            let handle = serving(&vcpu, || domain.spawn(future, at(9)).unwrap());
            let id = handle.id();
            handle.detach();
            id
        })
        .collect();
    run(&vcpu, 10);
    let watched = domain.host().watched.lock().unwrap();
    assert_eq!(watched.len(), 1);
    let (poll, ended) = watched[0];
    assert_eq!(poll.id, ids[1]);
    assert_eq!((poll.began, ended), (100, 200));
    assert_eq!(poll.location.file(), file!());
}

#[test]
fn the_source_position_of_a_spawn_is_that_of_the_call() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let inner = domain.clone();
    let future = async move {
        inner.vcpus().next().unwrap().watch_current_poll();
    };
    let line = line!() + 1;
    let handle = serving(&vcpu, || domain.spawn(future, at(9)).unwrap());
    handle.detach();
    run(&vcpu, 10);
    let watched = domain.host().watched.lock().unwrap();
    assert_eq!(watched[0].0.location.line(), line);
}
