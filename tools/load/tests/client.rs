//! Runs the client against servers with threads, and against servers that misbehave.

mod servers;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use upshift_load::{Group, Outcome, Pace, Plan, Work, http, matrix, run};

const ANY: &str = "127.0.0.1:0";

/// Starts a server that executes `talk` for one connection at a time.
fn misbehaving_server(talk: impl Fn(std::net::TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind(ANY).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            talk(stream);
        }
    });
    addr
}

fn plan(addr: SocketAddr, connections: usize, work: Work) -> Plan {
    let group = Group::new(addr, connections, "test");
    Plan::new(vec![group], work, Duration::from_millis(300))
}

fn http_work(pipeline: usize) -> Work {
    Work::Http {
        path: "/".into(),
        headers: vec!["Accept: text/plain".into()],
        pipeline,
    }
}

fn assert_clean(outcome: &Outcome) {
    for group in &outcome.groups {
        assert_eq!(group.errors, 0, "{:?}", group.first_error);
        assert_eq!(group.latency.len(), group.requests);
        assert!(group.requests > 0);
    }
}

#[test]
fn closed_loop_matrix_replies_are_correct() {
    let addr = servers::matrix();
    for n in [1, 8, 20, 65] {
        let outcome = run(&plan(addr, 8, Work::Matrix { n })).unwrap();
        assert_clean(&outcome);
        let group = &outcome.groups[0];
        assert_eq!(group.connections, 8);
        assert!(group.unanswered <= 8);
        assert!(group.per_second() > 0.0);
    }
}

#[test]
fn a_matrix_larger_than_every_buffer_comes_back() {
    let addr = servers::matrix();
    let mut plan = plan(addr, 2, Work::Matrix { n: 100 });
    plan.duration = Duration::from_secs(2);
    assert_clean(&run(&plan).unwrap());
}

#[test]
fn closed_loop_http_replies_are_correct_at_any_depth() {
    let addr = servers::plaintext();
    for pipeline in [1, 16, 300] {
        let outcome = run(&plan(addr, 4, http_work(pipeline))).unwrap();
        assert_clean(&outcome);
        let group = &outcome.groups[0];
        assert!(group.unanswered <= 4 * pipeline as u64);
        // On each of the four connections, a reply may straddle the beginning of the measured time,
        // and another reply its end.
        let bytes = group.requests as i64 * http::REPLY.len() as i64;
        assert!((group.bytes as i64 - bytes).abs() <= 8 * http::REPLY.len() as i64);
    }
}

#[test]
fn open_loop_sends_at_its_own_rate_not_at_the_rate_of_the_server() {
    let addr = servers::matrix();
    let mut plan = plan(addr, 4, Work::Matrix { n: 4 });
    plan.pace = Pace::OpenRate { per_second: 1000.0 };
    plan.groups.push(Group {
        pace: Some(Pace::Open {
            period: Duration::from_millis(10),
        }),
        ..Group::new(addr, 5, "slow")
    });
    plan.duration = Duration::from_millis(500);
    let outcome = run(&plan).unwrap();
    assert_clean(&outcome);
    // 500 and 250 sends fall into the measured time. After a halt of the machine, replies to
    // earlier requests fall into it, too.
    for (group, sends) in outcome.groups.iter().zip([500, 250]) {
        let count = group.requests + group.unanswered;
        assert!((sends / 2..=sends * 2).contains(&count), "{count} requests");
    }
}

#[test]
fn open_loop_latency_counts_from_the_intended_time() {
    // Each request takes 20 ms, and one is due every 10 ms, so the wait grows by 10 ms with each
    // request, as it would for real users.
    let addr = misbehaving_server(|mut stream| {
        let mut buffer = [0; 4096];
        while stream.read(&mut buffer).is_ok_and(|n| n > 0) {
            std::thread::sleep(Duration::from_millis(20));
            if stream.write_all(http::REPLY).is_err() {
                return;
            }
        }
    });
    let mut plan = plan(addr, 1, http_work(1));
    plan.pace = Pace::Open {
        period: Duration::from_millis(10),
    };
    plan.warmup = Duration::ZERO;
    plan.duration = Duration::from_millis(600);
    let outcome = run(&plan).unwrap();
    assert_clean(&outcome);
    let group = &outcome.groups[0];
    // In 600 ms 60 requests are due, of which 30 are answered, the last after about 300 ms. The
    // bounds leave a margin for other programs.
    assert!(group.delayed > 0);
    assert!(group.unanswered > 10, "{} unanswered", group.unanswered);
    assert!(group.oldest_unanswered > Duration::from_millis(150));
    assert!(group.quantile(1.0) > Duration::from_millis(150));
}

#[test]
fn a_refused_connection_is_an_error_with_advice() {
    let addr = TcpListener::bind(ANY).unwrap().local_addr().unwrap();
    let begin = Instant::now();
    let outcome = run(&plan(addr, 3, Work::Matrix { n: 2 })).unwrap();
    let group = &outcome.groups[0];
    assert_eq!((group.errors, group.connections, group.requests), (3, 0, 0));
    let message = group.first_error.as_deref().unwrap();
    assert!(message.contains("is the server running"), "{message}");
    assert!(begin.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_wrong_product_is_an_error() {
    let addr = misbehaving_server(|mut stream| {
        let mut request = vec![0; matrix::frame(2, 0).len()];
        stream.read_exact(&mut request).unwrap();
        let mut reply = Vec::new();
        matrix::square(&request[matrix::HEADER..], 2, &mut reply);
        stream.write_all(&reply).unwrap();
        stream.read_exact(&mut request).unwrap();
        *reply.last_mut().unwrap() ^= 1;
        stream.write_all(&reply).unwrap();
        // Waits until the client leaves.
        let _ = stream.read(&mut [0]);
    });
    let outcome = run(&plan(addr, 1, Work::Matrix { n: 2 })).unwrap();
    let group = &outcome.groups[0];
    assert_eq!(group.errors, 1);
    assert!(group.first_error.as_ref().unwrap().contains("wrong reply"));
}

#[test]
fn a_server_that_closes_or_sends_too_much_is_an_error() {
    let closing_server = misbehaving_server(drop);
    let outcome = run(&plan(closing_server, 2, http_work(1))).unwrap();
    assert_eq!(outcome.errors(), 2);

    let talkative_server = misbehaving_server(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(&http::REPLY.repeat(2));
        let _ = stream.read(&mut [0; 4096]);
    });
    let outcome = run(&plan(talkative_server, 1, http_work(1))).unwrap();
    let message = outcome.groups[0].first_error.clone().unwrap();
    assert!(message.contains("more replies"), "{message}");
}

#[test]
fn a_status_other_than_2xx_is_an_error_and_the_connection_lives_on() {
    let addr = misbehaving_server(|mut stream| {
        while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
            let reply = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno";
            if stream.write_all(reply).is_err() {
                return;
            }
        }
    });
    let outcome = run(&plan(addr, 1, http_work(1))).unwrap();
    let group = &outcome.groups[0];
    assert!(group.errors > 1);
    assert_eq!(group.requests, 0);
    assert!(group.first_error.as_ref().unwrap().contains("404"));
}

#[test]
fn a_silent_server_is_an_error_after_the_patience() {
    let listener = TcpListener::bind(ANY).unwrap();
    let mut plan = plan(listener.local_addr().unwrap(), 2, http_work(1));
    plan.patience = Duration::from_millis(200);
    plan.duration = Duration::from_secs(100);
    let begin = Instant::now();
    let outcome = run(&plan).unwrap();
    assert_eq!(outcome.errors(), 2);
    assert!(
        outcome.groups[0]
            .first_error
            .as_ref()
            .unwrap()
            .contains("no reply")
    );
    assert!(begin.elapsed() < Duration::from_secs(50));
}

#[test]
fn stop_ends_the_run() {
    let addr = servers::plaintext();
    let mut plan = plan(addr, 2, http_work(1));
    plan.duration = Duration::from_secs(100);
    plan.warmup = Duration::ZERO;
    let stop = Arc::new(AtomicBool::new(false));
    plan.stop = Some(stop.clone());
    let begin = Instant::now();
    let timer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
    });
    let outcome = run(&plan).unwrap();
    timer.join().unwrap();
    assert!(outcome.stopped);
    assert_clean(&outcome);
    assert!(begin.elapsed() < Duration::from_secs(50));
}

#[test]
fn cpu_time_of_server_and_client_is_reported() {
    let addr = servers::plaintext();
    let mut plan = plan(addr, 2, http_work(1));
    plan.server_pids = vec![std::process::id()];
    let outcome = run(&plan).unwrap();
    assert_clean(&outcome);
    let server = outcome.server_cpu.unwrap();
    assert!(server.total() >= outcome.client_cpu.total());
    assert!(!outcome.client_cpu_per_request().unwrap().total().is_zero());
}

#[test]
fn invalid_plans_are_refused() {
    let addr = ANY.parse().unwrap();
    let good = plan(addr, 1, http_work(1));
    let mut bad = vec![good.clone(); 7];
    bad[0].groups.clear();
    bad[1].groups[0].connections = 0;
    bad[2].work = Work::Matrix { n: 0 };
    bad[3].work = Work::Matrix {
        n: matrix::MAX_N + 1,
    };
    bad[4].pace = Pace::OpenRate {
        per_second: f64::NAN,
    };
    bad[5].work = Work::Http {
        path: "/a b".into(),
        headers: Vec::new(),
        pipeline: 1,
    };
    bad[6].work = http_work(0);
    for plan in bad {
        let error = run(&plan).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{plan:?}");
    }
    let mut elsewhere = good.clone();
    elsewhere.pin = Some(1_000_000);
    assert!(run(&elsewhere).unwrap_err().to_string().contains("CPU"));
    let mut nobody = good;
    nobody.server_pids = vec![u32::MAX / 2];
    assert!(run(&nobody).is_err());
}

#[test]
fn measuring_begins_when_every_connection_is_served() {
    // The kernel completes connections that the server has not accepted; load on such connections
    // would be meaningless.
    let listener = TcpListener::bind(ANY).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::sleep(Duration::from_millis(400));
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).is_ok_and(|n| n > 0) {
                    if stream.write_all(http::REPLY).is_err() {
                        return;
                    }
                }
            });
        }
    });
    let outcome = run(&plan(addr, 3, http_work(1))).unwrap();
    assert_clean(&outcome);
    let group = &outcome.groups[0];
    assert_eq!(group.connections, 3);
    assert!(group.oldest_unanswered < outcome.elapsed);
}
