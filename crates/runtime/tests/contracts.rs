//! What must not compile: what belongs to a thread does not leave it.

use std::rc::Rc;

/// Does not compile if the type has the trait: then there are two ways to choose from.
macro_rules! assert_not {
    ($type:ty: $trait:path) => {
        const _: () = {
            trait Ambiguous<A> {
                fn choose() {}
            }
            impl<T: ?Sized> Ambiguous<()> for T {}
            struct Has;
            impl<T: ?Sized + $trait> Ambiguous<Has> for T {}
            let _ = <$type as Ambiguous<_>>::choose;
        };
    };
}

// What `spawn_local` has pinned to the thread that built the runtime is polled, and dropped, there.
assert_not!(upshift::Runtime: Send);
assert_not!(upshift::Runtime: Sync);
assert_not!(upshift::LocalHandle<()>: Send);
assert_not!(upshift::LocalHandle<()>: Sync);
// It is of the thread whose poll is not to be suspended.
// Results and values go where their handles go.
assert_not!(upshift::JoinHandle<Rc<()>>: Send);
assert_not!(upshift::sync::Mutex<Rc<()>>: Sync);
assert_not!(upshift::sync::MutexGuard<'static, Rc<()>>: Send);
assert_not!(upshift::sync::MutexGuard<'static, std::cell::Cell<()>>: Sync);
assert_not!(upshift::sync::mpsc::Sender<Rc<()>>: Send);
assert_not!(upshift::sync::oneshot::Receiver<Rc<()>>: Send);

#[test]
#[should_panic(expected = "block_on")]
fn a_runtime_does_not_run_within_a_poll_of_another() {
    let runtime = upshift::Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let inner = upshift::Runtime::builder().vcpus(1).build().unwrap();
        inner.block_on(async {});
    });
}
