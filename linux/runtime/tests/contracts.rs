//! Programs that must not compile: values that belong to a thread do not leave it.

use std::cell::Cell;
use std::rc::Rc;

use upshift::sync;

/// Does not compile if the type has the trait, because the call is ambiguous then.
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

// Coroutines of `spawn_local` are polled, and dropped, on the thread that built the runtime.
assert_not!(upshift::Runtime: Send);
assert_not!(upshift::Runtime: Sync);
assert_not!(upshift::LocalHandle<()>: Send);
assert_not!(upshift::LocalHandle<()>: Sync);
assert_not!(upshift::task::LocalSet: Send);
// A result goes where its handle goes.
assert_not!(upshift::JoinHandle<Rc<()>>: Send);
assert_not!(upshift::JoinHandle<Rc<()>>: Sync);
assert_not!(upshift::task::JoinSet<Rc<()>>: Send);
assert_not!(upshift::task::JoinSet<Rc<()>>: Sync);

/// Checks all these traits for a type that must stay on its thread.
macro_rules! stay {
    ($($type:ty),* $(,)?) => { $(
        assert_not!($type: Send);
        assert_not!($type: Sync);
    )* };
}

// A value goes where the type that holds it goes.
stay!(
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
    // The last guard drops the whole value, also if it gives access to a part.
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
    // Several receivers may read a value at a time.
    sync::watch::Sender<Cell<()>>,
    sync::watch::Receiver<Cell<()>>,
    sync::watch::Ref<'static, Cell<()>>,
    // So may several readers.
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

const fn moves<T: Send>() {}
const fn moves_and_is_shared<T: Send + Sync>() {}
const _: () = {
    moves::<sync::Mutex<Cell<()>>>();
    moves::<sync::MutexGuard<'static, Cell<()>>>();
    moves::<sync::OwnedMutexGuard<Cell<()>>>();
    moves::<sync::RwLock<Cell<()>>>();
    moves_and_is_shared::<sync::Mutex<Cell<()>>>();
    moves_and_is_shared::<sync::mpsc::Sender<Cell<()>>>();
    moves_and_is_shared::<sync::broadcast::Sender<Cell<()>>>();
    moves_and_is_shared::<sync::oneshot::Receiver<Cell<()>>>();
    moves_and_is_shared::<upshift::JoinHandle<Cell<()>>>();
    moves_and_is_shared::<upshift::JoinError>();
    moves_and_is_shared::<upshift::task::AbortHandle>();
    moves_and_is_shared::<upshift::Handle>();
    moves_and_is_shared::<upshift::RecvBuf>();
    moves_and_is_shared::<upshift::time::Sleep>();
    moves_and_is_shared::<sync::RwLockReadGuard<'static, ()>>();
    moves_and_is_shared::<sync::OwnedRwLockMappedWriteGuard<(), ()>>();
    moves_and_is_shared::<upshift::net::TcpStream>();
    moves_and_is_shared::<upshift::fs::File>();
};

#[test]
#[should_panic(expected = "block_on")]
fn a_runtime_does_not_run_within_a_poll_of_another() {
    let runtime = upshift::Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let inner = upshift::Runtime::builder().vcpus(1).build().unwrap();
        inner.block_on(async {});
    });
}
