//! Tests of the traits `Send` and `Sync`, so that values that belong to a thread cannot leave it.

use std::cell::Cell;
use std::rc::Rc;

use upshift::sync;

/// Fails to compile if the type implements the trait, because the call is then ambiguous.
macro_rules! assert_not {
    ($type:ty: $trait:path) => {
        const _: () = {
            trait Ambiguous<A> {
                fn choose() {}
            }
            impl<T: ?Sized> Ambiguous<()> for T {}
            struct Implements;
            impl<T: ?Sized + $trait> Ambiguous<Implements> for T {}
            let _ = <$type as Ambiguous<_>>::choose;
        };
    };
}

// Coroutines of `spawn_local` are polled, and dropped, on the thread that built the runtime.
assert_not!(upshift::Runtime: Send);
assert_not!(upshift::Runtime: Sync);
assert_not!(upshift::LocalHandle<()>: Send);
assert_not!(upshift::LocalHandle<()>: Sync);
assert_not!(upshift::task::LocalSet: Send);
// A result moves with its handle.
assert_not!(upshift::JoinHandle<Rc<()>>: Send);
assert_not!(upshift::JoinHandle<Rc<()>>: Sync);
assert_not!(upshift::task::JoinSet<Rc<()>>: Send);
assert_not!(upshift::task::JoinSet<Rc<()>>: Sync);

/// Asserts that the types are neither `Send` nor `Sync`.
macro_rules! assert_stay_on_thread {
    ($($type:ty),* $(,)?) => { $(
        assert_not!($type: Send);
        assert_not!($type: Sync);
    )* };
}

// A value moves with the type that contains it.
assert_stay_on_thread!(
    sync::Mutex<Rc<()>>,
    sync::MutexGuard<'static, Rc<()>>,
    sync::OwnedMutexGuard<Rc<()>>,
    sync::RwLock<Rc<()>>,
    sync::RwLockReadGuard<'static, Rc<()>>,
    sync::RwLockWriteGuard<'static, Rc<()>>,
    sync::RwLockMappedWriteGuard<'static, Rc<()>>,
    sync::OwnedRwLockReadGuard<Rc<()>>,
    sync::OwnedRwLockWriteGuard<Rc<()>>,
    sync::OwnedRwLockMappedWriteGuard<Rc<()>>,
    // The last guard drops the whole value, even if it gives access to a part only.
    sync::OwnedRwLockReadGuard<Rc<()>, ()>,
    sync::OwnedRwLockMappedWriteGuard<Rc<()>, ()>,
    sync::OnceCell<Rc<()>>,
    sync::SetOnce<Rc<()>>,
    sync::mpsc::Sender<Rc<()>>,
    sync::mpsc::Receiver<Rc<()>>,
    sync::mpsc::WeakSender<Rc<()>>,
    sync::mpsc::Reserve<'static, Rc<()>>,
    sync::mpsc::Permit<'static, Rc<()>>,
    sync::mpsc::PermitIterator<'static, Rc<()>>,
    sync::mpsc::OwnedPermit<Rc<()>>,
    sync::mpsc::UnboundedSender<Rc<()>>,
    sync::mpsc::UnboundedReceiver<Rc<()>>,
    sync::mpsc::WeakUnboundedSender<Rc<()>>,
    sync::oneshot::Sender<Rc<()>>,
    sync::oneshot::Receiver<Rc<()>>,
    sync::watch::Sender<Rc<()>>,
    sync::watch::Receiver<Rc<()>>,
    sync::watch::Ref<'static, Rc<()>>,
    sync::broadcast::Sender<Rc<()>>,
    sync::broadcast::Receiver<Rc<()>>,
    sync::broadcast::WeakSender<Rc<()>>,
    // Several receivers may read a value at the same time.
    sync::watch::Sender<Cell<()>>,
    sync::watch::Receiver<Cell<()>>,
    sync::watch::Ref<'static, Cell<()>>,
    // Several readers may read a value at the same time.
    sync::RwLockReadGuard<'static, Cell<()>>,
    sync::OwnedRwLockReadGuard<Cell<()>>,
    sync::OwnedRwLockReadGuard<Cell<()>, ()>,
    sync::OwnedRwLockWriteGuard<Cell<()>>,
    sync::RwLockWriteGuard<'static, Cell<()>>,
    sync::RwLockMappedWriteGuard<'static, Cell<()>>,
    sync::OwnedRwLockMappedWriteGuard<Cell<()>, ()>,
);
assert_not!(sync::RwLock<Cell<()>>: Sync);
assert_not!(sync::OnceCell<Cell<()>>: Sync);
assert_not!(sync::SetOnce<Cell<()>>: Sync);
assert_not!(sync::MutexGuard<'static, Cell<()>>: Sync);
assert_not!(sync::OwnedMutexGuard<Cell<()>>: Sync);
// A lock of the standard library is released on the thread that took it.
assert_not!(sync::watch::Ref<'static, ()>: Send);

const fn assert_send<T: Send>() {}
const fn assert_send_and_sync<T: Send + Sync>() {}
const _: () = {
    assert_send::<sync::Mutex<Cell<()>>>();
    assert_send::<sync::MutexGuard<'static, Cell<()>>>();
    assert_send::<sync::OwnedMutexGuard<Cell<()>>>();
    assert_send::<sync::RwLock<Cell<()>>>();
    assert_send_and_sync::<sync::Mutex<Cell<()>>>();
    assert_send_and_sync::<sync::mpsc::Sender<Cell<()>>>();
    assert_send_and_sync::<sync::broadcast::Sender<Cell<()>>>();
    assert_send_and_sync::<sync::oneshot::Receiver<Cell<()>>>();
    assert_send_and_sync::<upshift::JoinHandle<Cell<()>>>();
    assert_send_and_sync::<upshift::JoinError>();
    assert_send_and_sync::<upshift::task::AbortHandle>();
    assert_send_and_sync::<upshift::Handle>();
    assert_send_and_sync::<upshift::RecvBuf>();
    assert_send_and_sync::<upshift::time::Sleep>();
    assert_send_and_sync::<sync::RwLockReadGuard<'static, ()>>();
    assert_send_and_sync::<sync::OwnedRwLockMappedWriteGuard<(), ()>>();
    assert_send_and_sync::<upshift::net::TcpStream>();
    assert_send_and_sync::<upshift::fs::File>();
};

#[test]
#[should_panic(expected = "block_on")]
fn a_runtime_does_not_run_within_a_poll_of_another_runtime() {
    let runtime = upshift::Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let inner = upshift::Runtime::builder().vcpus(1).build().unwrap();
        inner.block_on(async {});
    });
}
