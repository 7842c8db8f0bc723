//! Runs the client of spin requests, which burn CPU time, against servers that answer late, in
//! another order, wrongly or not at all.

mod servers;

use servers::serve;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use upshift_load::spin::FRAME;
use upshift_load::{Distribution, Hog, Pace, Plan, run};

const MS: Duration = Duration::from_millis(1);

fn plan(target: SocketAddr) -> Plan {
    let mut plan = Plan::spin(target, 2000.0, Duration::from_micros(1), 300 * MS);
    plan.groups[0].connections = 4;
    plan
}

#[test]
fn classes_are_drawn_by_share_and_counted_separately() {
    let target = servers::spin();
    let outcome = run(&plan(target).with_long_requests(2 * MS, 40, 0.1)).unwrap();
    assert_eq!(outcome.errors(), 0, "{:?}", outcome.groups[0].first_error);
    let [short, long] = &outcome.groups[..] else {
        panic!("not two classes")
    };
    assert_eq!(
        (short.label.as_str(), long.label.as_str()),
        ("short", "long")
    );
    let all = (short.requests + long.requests + short.unanswered + long.unanswered) as f64;
    // 2,000 requests per second are due for 300 ms, at random times.
    assert!((all - 600.0).abs() < 150.0, "{all} requests");
    let share = (long.requests + long.unanswered) as f64 / all;
    assert!((0.03..0.25).contains(&share), "{share} are long");
    // The bound is half of the service time, because the duration of a burn varies with the
    // frequency of the CPU.
    assert!(long.quantile(0.5) >= MS, "a long request is too short");
    assert!(short.quantile(0.1) < long.quantile(0.5));
    assert!(short.quantile(0.5) <= short.quantile(0.99));
    assert_eq!(short.requests, short.latency.len());
}

#[test]
fn equal_seeds_give_equal_requests() {
    static SEEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    let target = serve(|mut stream| {
        let mut frame = [0; FRAME];
        loop {
            stream.read_exact(&mut frame)?;
            let service = u64::from_le_bytes(frame[..8].try_into().unwrap());
            SEEN.lock().unwrap().push(service);
            stream.write_all(&frame)?;
        }
    });
    let seen = |seed| {
        let mut plan = plan(target).with_long_requests(10 * MS / 1000, 32, 0.2);
        (plan.seed, plan.groups[0].connections) = (seed, 1);
        plan.drain = 20_000 * MS;
        run(&plan).unwrap();
        std::mem::take(&mut *SEEN.lock().unwrap())
    };
    assert_eq!(seen(5), seen(5));
    assert_ne!(seen(5), seen(6));
}

#[test]
fn replies_in_another_order_find_their_requests() {
    // The server answers four requests at a time, the last first.
    let target = serve(|mut stream| {
        let mut first = [0; FRAME];
        stream.read_exact(&mut first)?;
        stream.write_all(&first)?;
        loop {
            let mut four = [[0; FRAME]; 4];
            for frame in &mut four {
                stream.read_exact(frame)?;
            }
            four.reverse();
            stream.write_all(four.as_flattened())?;
        }
    });
    let mut plan = plan(target);
    plan.groups[0].connections = 1;
    plan.pace = Pace::OpenRate { per_second: 2000.0 };
    plan.drain = 1000 * MS;
    let outcome = run(&plan).unwrap();
    let group = &outcome.groups[0];
    assert_eq!(group.errors, 0, "{:?}", group.first_error);
    assert!(group.requests >= 400);
    assert!(group.unanswered < 4, "four or more are unanswered");
    // Of four requests that arrive 0.5 ms apart the first waits for 1.5 ms, and the last does not
    // wait.
    assert!(group.quantile(0.95) >= MS);
}

#[test]
fn replies_within_the_drain_are_counted() {
    let target = serve(|mut stream| {
        let mut frame = [0; FRAME];
        stream.read_exact(&mut frame)?;
        stream.write_all(&frame)?;
        loop {
            stream.read_exact(&mut frame)?;
            std::thread::sleep(150 * MS);
            stream.write_all(&frame)?;
        }
    });
    let mut plan = plan(target);
    plan.groups[0].connections = 1;
    plan.pace = Pace::OpenRate { per_second: 20.0 };
    (plan.warmup, plan.duration) = (Duration::ZERO, 100 * MS);
    plan.drain = 20_000 * MS;
    let group = run(&plan).unwrap().groups.remove(0);
    assert_eq!((group.requests, group.unanswered), (2, 0));
    assert!(group.quantile(0.0) >= 100 * MS);
}

#[test]
fn a_server_cannot_hide_a_stall() {
    let target = serve(|mut stream| {
        let mut frame = [0; FRAME];
        let begin = Instant::now();
        let mut stalled = false;
        loop {
            stream.read_exact(&mut frame)?;
            if !stalled && begin.elapsed() > 100 * MS {
                stalled = true;
                std::thread::sleep(100 * MS);
            }
            stream.write_all(&frame)?;
        }
    });
    let mut plan = plan(target);
    plan.groups[0].connections = 1;
    let group = run(&plan).unwrap().groups.remove(0);
    // A third of the requests were due during the stall.
    assert!(group.quantile(0.9) > 20 * MS, "{:?}", group.quantile(0.9));
    assert!(group.quantile(0.1) < group.quantile(0.9) / 2);
}

#[test]
fn a_hog_is_sent_first_and_unanswered_requests_are_counted() {
    // One connection is served at a time, as by a runtime without preemption.
    static LOCK: Mutex<()> = Mutex::new(());
    let target = serve(|mut stream| {
        let mut frame = [0; FRAME];
        loop {
            stream.read_exact(&mut frame)?;
            let service = u64::from_le_bytes(frame[..8].try_into().unwrap());
            let _guard = LOCK.lock().unwrap();
            std::thread::sleep(Duration::from_nanos(service));
            stream.write_all(&frame)?;
        }
    });
    let mut plan = plan(target);
    plan.pace = Pace::OpenRate { per_second: 200.0 };
    plan.classes[0].service = Duration::ZERO;
    plan.hog = Some(Hog {
        service: 2000 * MS,
        level: 40,
    });
    plan.drain = 20 * MS;
    let outcome = run(&plan).unwrap();
    let group = &outcome.groups[0];
    assert_eq!(
        (outcome.groups.len(), group.requests, group.errors),
        (1, 0, 0)
    );
    // 200 requests per second are due during the warm-up of 30 ms and the load of 300 ms: 66
    // together, with a margin for other programs.
    assert!(
        (30..=100).contains(&group.unanswered),
        "{} unanswered",
        group.unanswered
    );
    assert!(group.oldest_unanswered >= 250 * MS);
}

#[test]
fn replies_without_a_request_are_errors() {
    let target = serve(|mut stream| {
        let mut frame = [0; FRAME];
        stream.read_exact(&mut frame)?;
        stream.write_all(&frame)?;
        loop {
            stream.read_exact(&mut frame)?;
            frame[0] ^= 1;
            stream.write_all(&frame)?;
        }
    });
    let outcome = run(&plan(target)).unwrap();
    let first = outcome.groups[0].first_error.clone().unwrap_or_default();
    assert!(first.contains("wrong reply"), "{first}");
    assert_eq!(outcome.requests(), 0);
}

#[test]
fn exponential_service_times_vary() {
    let target = servers::spin();
    let mut plan = plan(target);
    plan.pace = Pace::Poisson { per_second: 200.0 };
    plan.classes[0].service = MS;
    plan.classes[0].distribution = Distribution::Exponential;
    let group = run(&plan).unwrap().groups.remove(0);
    assert!(group.quantile(0.95) > 2 * group.quantile(0.1));
}

#[test]
fn invalid_plans_are_refused() {
    let target = "127.0.0.1:1".parse().unwrap();
    let refused = |change: fn(&mut Plan), expected: &str| {
        let mut plan = plan(target);
        change(&mut plan);
        let error = run(&plan).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(expected), "{error}");
    };
    refused(|p| p.pace = Pace::Poisson { per_second: 0.0 }, "rate");
    refused(|p| p.groups[0].connections = 0, "connection");
    refused(|p| p.duration = Duration::ZERO, "duration");
    refused(|p| p.classes[0].share = 0.5, "shares");
    refused(|p| p.classes[0].level = 64, "level");
    refused(|p| p.classes[0].service = Duration::from_secs(61), "60 s");
    refused(|p| p.classes.clear(), "shares");
}
