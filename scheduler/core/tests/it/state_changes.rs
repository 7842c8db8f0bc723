//! Tests that each step of a coroutine is reported to a tracing host once, in order.

use std::cell::Cell;
use std::future::poll_fn;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use upshift_core::QueueEnd;
use upshift_core::{
    Change, Config, CoroutineId, Domain, Executor, Host, Level, Picked, Polled, Priority,
    ServedVcpu, State, Step, Vcpu,
};

thread_local! {
    static SERVED: Cell<Option<NonNull<Vcpu<Tracing>>>> = const { Cell::new(None) };
}

type Changes = Arc<Mutex<Vec<Change>>>;

struct Tracing(Changes);

// SAFETY: `current` returns the vCPU that the calling thread has put into `SERVED`. Only tests do
// so, and each has the vCPU's executor.
unsafe impl Host for Tracing {
    #[inline]
    fn waker_table() -> &'static core::task::RawWakerVTable {
        upshift_core::waker_table!(Tracing)
    }

    fn is_tracing(&self) -> bool {
        true
    }

    fn on_step(&self, change: &Change) {
        self.0.lock().unwrap().push(*change);
    }
    fn now(&self) -> u64 {
        0
    }
    fn current(&self) -> Option<ServedVcpu> {
        SERVED.get().map(ServedVcpu::from)
    }
    fn kick(&self, _: usize) {}
}

fn run(executor: &Executor<Tracing>) {
    let mut back = None;
    while let Some(Picked::Poll(coroutine)) = executor.pick(back.take()) {
        if let Polled::Yielded(yielded) = coroutine.poll() {
            back = Some(yielded);
        }
    }
}

fn steps(changes: &Changes, id: CoroutineId) -> Vec<Step> {
    let changes = changes.lock().unwrap();
    let matching = changes.iter().filter(|change| change.id == id);
    matching.map(|change| change.step).collect()
}

#[test]
fn each_step_is_reported_once_in_order() {
    use Step::{Blocked, Exited, Polled, Ready, Spawned, Yielded};
    let changes = Changes::default();
    let domain = Domain::new(Tracing(changes.clone()), Config::default());
    let executor = domain.add_vcpu().unwrap();
    SERVED.set(Some(executor.vcpu()));
    let mut polls = 0;
    let future = poll_fn(move |cx| {
        polls += 1;
        match polls {
            // The coroutine yields, then blocks, then ends.
            1 => cx.waker().wake_by_ref(),
            2 => {}
            _ => return Poll::Ready(()),
        }
        Poll::Pending
    });
    let line = line!() + 2;
    let handle = domain
        .spawn(future, Priority::At(Level::at::<9>()))
        .unwrap();
    let id = handle.id();
    run(&executor);
    SERVED.set(None);
    domain.wake(id).unwrap();
    SERVED.set(Some(executor.vcpu()));
    // The wake has no effect, since the coroutine is in the inbox.
    domain.wake(id).unwrap();
    run(&executor);
    let expected = [
        Spawned, Ready, Polled, Yielded, Polled, Blocked, Ready, Polled, Exited,
    ];
    assert_eq!(steps(&changes, id), expected);
    let all_changes = changes.lock().unwrap();
    for change in all_changes.iter() {
        assert_eq!((change.level.get(), change.vcpu), (9, 0));
        assert_eq!(change.location.file(), file!());
        assert_eq!(change.location.line(), line);
    }
    // Only the `Ready` of the wake from outside was made by a thread that serves no vCPU.
    let outside: Vec<_> = all_changes
        .iter()
        .map(|change| change.by.is_none())
        .collect();
    assert_eq!(outside.iter().position(|outside| *outside), Some(6));
    assert_eq!(outside.iter().filter(|outside| **outside).count(), 1);
    drop((all_changes, executor));
    SERVED.set(None);
}

#[test]
fn a_steal_names_its_victim_and_a_resumption_is_not_reported_as_a_poll() {
    use Step::{Polled, Ready, Resumed, Spawned, Stolen, Suspended};
    let changes = Changes::default();
    let domain = Domain::new(Tracing(changes.clone()), Config::default());
    let (first, second) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    SERVED.set(Some(first.vcpu()));
    let level = Priority::At(Level::at::<9>());
    let id = domain.spawn(async {}, level).unwrap().id();
    SERVED.set(Some(second.vcpu()));
    let Some(Picked::Poll(running)) = second.pick(None) else {
        panic!("nothing to steal");
    };
    // SAFETY: this thread serves the vCPU, and the coroutine, whose poll has not begun, is only
    // picked again.
    assert_eq!(unsafe { second.suspend_current(QueueEnd::Tail) }, Some(id));
    std::mem::forget(running);
    assert!(matches!(second.pick(None), Some(Picked::Resume { .. })));
    let expected = [
        Spawned,
        Ready,
        Stolen { from: 0 },
        Polled,
        Suspended,
        Resumed,
    ];
    assert_eq!(steps(&changes, id), expected);
    let states: Vec<_> = expected.iter().filter_map(|step| step.entered()).collect();
    use State::{Created, Running};
    let all = [Created, State::Ready, Running, State::Suspended, Running];
    assert_eq!(states, all);
    // SAFETY: this thread serves the vCPU, and the poll of the coroutine, which is current again,
    // never began.
    assert_eq!(unsafe { second.suspend_current(QueueEnd::Tail) }, Some(id));
    SERVED.set(None);
}

#[test]
fn a_poll_that_wakes_itself_and_is_suspended_is_ready_again_at_its_end() {
    let domain = Domain::new(Tracing(Changes::default()), Config::default());
    let executor = Rc::new(domain.add_vcpu().unwrap());
    SERVED.set(Some(executor.vcpu()));
    let polls = Arc::new(Mutex::new(0));
    let poll_counter = polls.clone();
    let future = poll_fn(move |cx| {
        let mut polls = poll_counter.lock().unwrap();
        *polls += 1;
        if *polls == 2 {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        // SAFETY: vCPUs live as long as their domain; this poll is under way on the vCPU, and
        // continues when it has been picked, below.
        unsafe {
            let vcpu = SERVED.get().unwrap();
            assert!(vcpu.as_ref().suspend_current(QueueEnd::Head).is_some());
        }
        RESUME.with_borrow(|resume| resume.as_ref().unwrap()());
        Poll::Pending
    });
    let resuming_executor = executor.clone();
    RESUME.set(Some(Box::new(move || {
        assert!(matches!(
            resuming_executor.pick(None),
            Some(Picked::Resume { .. })
        ));
    })));
    let handle = domain
        .spawn(future, Priority::At(Level::at::<9>()))
        .unwrap();
    run(&executor);
    assert_eq!(*polls.lock().unwrap(), 2);
    assert!(handle.is_finished());
    RESUME.set(None);
    drop((handle, executor));
    SERVED.set(None);
}

type Resume = Box<dyn Fn()>;

thread_local! {
    static RESUME: std::cell::RefCell<Option<Resume>> = const { std::cell::RefCell::new(None) };
}
