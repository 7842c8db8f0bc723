//! Tests of the ends of coroutines and runtimes: results, panics, cancellation, errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use upshift::{Dead, Priority, Runtime, State, yield_now};

use super::{URGENT, runtime_with_one_vcpu, runtime_with_two_vcpus};

#[test]
fn block_on_returns_the_output_of_a_future_that_may_borrow() {
    let text = String::from("borrowed");
    let runtime = runtime_with_one_vcpu();
    assert_eq!(runtime.block_on(async { text.len() }), 8);
    assert_eq!(runtime.block_on(async { 2 }), 2);
}

#[test]
fn a_cancelled_main_coroutine_is_an_error() {
    let runtime = runtime_with_one_vcpu();
    let cancel_self = async || {
        let id = upshift::get_cid().unwrap();
        upshift::Handle::current().unwrap().cancel(id).unwrap();
        std::future::pending::<()>().await;
    };
    let error = runtime.try_block_on(cancel_self()).unwrap_err();
    assert!(error.is_cancelled(), "{error}");
    assert_eq!(runtime.try_block_on(async { 2 }).unwrap(), 2);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(cancel_self());
    }));
    assert!(caught.is_err());
}

#[test]
fn a_function_that_blocks_outside_a_runtime_is_an_error() {
    let error = upshift::try_spawn_blocking(|| 1).unwrap_err();
    let inner = error.get_ref().unwrap().downcast_ref();
    assert_eq!(inner, Some(&upshift::SpawnError::NoVcpu));
}

#[test]
fn a_panic_of_the_main_coroutine_leaves_block_on() {
    let runtime = runtime_with_one_vcpu();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(async { panic!("on purpose") })
    }));
    assert_eq!(
        *caught.unwrap_err().downcast::<&str>().unwrap(),
        "on purpose"
    );
    assert_eq!(runtime.block_on(async { 3 }), 3);
}

#[test]
fn a_dead_id_is_an_error_value() {
    runtime_with_one_vcpu().block_on(async {
        let handle = upshift::spawn(async {}, Priority::Inherit);
        let id = handle.id();
        handle.await.unwrap();
        assert_eq!(upshift::wake(id), Err(Dead));
        assert_eq!(upshift::reprio(id, URGENT), Err(Dead));
        assert_eq!(upshift::Handle::current().unwrap().state(id), State::Exited);
    });
    let unused = upshift::CoroutineId::from_u64(7);
    assert_eq!(upshift::wake(unused), Err(Dead));
}

#[test]
fn a_panic_is_returned_by_the_join_and_ends_no_other_coroutine() {
    runtime_with_one_vcpu().block_on(async {
        let panicking = upshift::spawn(async { panic!("broken: {}", 7) }, Priority::Inherit);
        let other = upshift::spawn(async { 5 }, Priority::Inherit);
        let error = panicking.await.unwrap_err();
        assert!(error.is_panic());
        let message = format!("task {} panicked with message \"broken: 7\"", error.id());
        assert_eq!(error.to_string(), message);
        assert_eq!(other.await.unwrap(), 5);
    });
}

#[test]
fn dropping_the_runtime_drops_every_future() {
    struct CountOnDrop(Arc<AtomicUsize>);
    impl Drop for CountOnDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let runtime = runtime_with_two_vcpus();
    runtime.block_on(async {
        for _ in 0..100 {
            let count = CountOnDrop(dropped.clone());
            upshift::spawn(
                async move {
                    let _count = count;
                    std::future::pending::<()>().await;
                },
                Priority::Inherit,
            )
            .detach();
            let count = CountOnDrop(dropped.clone());
            upshift::spawn_local(
                async move {
                    let _count = count;
                    std::future::pending::<()>().await;
                },
                Priority::Inherit,
            )
            .detach();
        }
        yield_now().await;
    });
    let handle = runtime.handle();
    drop(runtime);
    assert_eq!(dropped.load(Ordering::Relaxed), 200);
    assert!(handle.spawn(async {}, Priority::Inherit).is_err());
}

#[test]
fn joining_a_cancelled_coroutine_is_an_error() {
    runtime_with_one_vcpu().block_on(async {
        let handle = upshift::spawn(std::future::pending::<()>(), Priority::Inherit);
        yield_now().await;
        handle.cancel();
        assert!(handle.await.unwrap_err().is_cancelled());
    });
}

#[test]
fn invalid_settings_are_errors() {
    for builder in [
        Runtime::builder().vcpus(0),
        Runtime::builder().vcpus(10_000),
        Runtime::builder().name("a\0b"),
        Runtime::builder().blocking_threads(0),
        Runtime::builder().stall_limit(std::time::Duration::ZERO),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    }
    let error = Runtime::builder()
        .vcpus(1)
        .pin([100_000])
        .build()
        .unwrap_err();
    assert!(error.to_string().contains("CPU 100000"), "{error}");
    let error = Runtime::builder()
        .vcpus(1)
        .buffers(3, 100)
        .build()
        .unwrap_err();
    assert!(error.to_string().contains("power of two"), "{error}");
}

#[test]
fn outside_a_runtime_every_call_is_an_error() {
    assert!(upshift::alloc_cpu().is_err());
    assert!(upshift::get_cid().is_none());
    assert!(upshift::try_spawn(async {}, Priority::Inherit).is_err());
    assert!(upshift::Handle::current().is_err());
}
