use super::*;
use crate::{Level, Priority, Runtime};

/// Returns a file without a name, and a call that keeps the file's group in the table.
fn file() -> (Fd, Call) {
    let path = std::env::temp_dir().join(format!(
        "upshift-sync-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let file = std::fs::File::create(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    let fd = Fd::new(std::os::fd::OwnedFd::from(file));
    let call = Call::begin(&fd);
    (fd, call)
}

fn started_count(call: &Call) -> usize {
    call.group.0.lock().started_count
}

fn run(vcpus: usize, test: impl Future<Output = ()>) {
    let runtime = Runtime::builder().vcpus(vcpus).build().unwrap();
    runtime.block_on(test);
}

#[test]
fn concurrent_calls_share_an_operation() {
    run(1, async {
        let (fd, call) = file();
        let calls: Vec<_> = (0..32)
            .map(|n| {
                let fd = fd.clone();
                crate::spawn(async move { sync(&fd, n == 31).await }, Priority::Inherit)
            })
            .collect();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        // Two operations are enough if all calls join while the first operation runs. The bound
        // leaves a margin for operations that complete meanwhile.
        let operations = started_count(&call);
        assert!((1..=8).contains(&operations), "operations: {operations}");
    });
}

#[test]
fn a_call_waits_for_an_operation_that_began_after_it() {
    run(2, async {
        let (fd, call) = file();
        let call = Arc::new(call);
        let calls: Vec<_> = (0..64)
            .map(|n| {
                let (fd, call) = (fd.clone(), call.clone());
                let work = async move {
                    for _ in 0..10 {
                        let old_count = started_count(&call);
                        sync(&fd, false).await.unwrap();
                        assert!(started_count(&call) > old_count);
                    }
                };
                crate::spawn(work, Level::new(n % 64).unwrap())
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        let rounds = call.group.0.lock();
        assert!(rounds.running.is_none() && rounds.next.is_none());
    });
}

#[test]
fn other_calls_finish_when_the_leader_is_dropped() {
    run(1, async {
        let (fd, call) = file();
        for _ in 0..50 {
            let leader_fd = fd.clone();
            let sync_as_leader = async move { sync(&leader_fd, false).await };
            let leader = crate::spawn(sync_as_leader, Priority::Inherit);
            crate::yield_now().await;
            let followers: Vec<_> = (0..4)
                .map(|_| {
                    let fd = fd.clone();
                    crate::spawn(async move { sync(&fd, true).await }, Priority::Inherit)
                })
                .collect();
            crate::yield_now().await;
            leader.cancel();
            for follower in followers {
                follower.await.unwrap().unwrap();
            }
        }
        assert!(call.group.0.lock().running.is_none());
    });
}

#[test]
fn an_error_is_reported_to_all_calls() {
    run(1, async {
        let (_reader, writer) = std::io::pipe().unwrap();
        let fd = Fd::new(std::os::fd::OwnedFd::from(writer));
        let calls: Vec<_> = (0..8)
            .map(|_| {
                let fd = fd.clone();
                crate::spawn(async move { sync(&fd, false).await }, Priority::Inherit)
            })
            .collect();
        for call in calls {
            let error = call.await.unwrap().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        }
    });
}

#[test]
fn ended_and_failed_calls_leave_no_group_or_round() {
    run(1, async {
        let (fd, call) = file();
        sync(&fd, false).await.unwrap();
        drop(call);
        assert!(!GROUPS.lock().contains_key(&fd.as_raw_fd()));
    });
    let (fd, call) = file();
    let result = futures_lite::future::block_on(sync(&fd, false));
    assert!(result.is_err());
    assert!(call.group.0.lock().running.is_none());
}
