//! Tests of missing rights, and of rights that are lost while a thread is elevated.

use upshift_elevate::sys::{Kernel, Sys};
use upshift_elevate::testing::{Call, Faulty};
use upshift_elevate::{Class, Elevator, Obstacle, Policy, Priority, Restored, Rights};

use crate::is_permitted_root;
use crate::process::{Process, Sleeper};

/// Drops all capabilities of the calling thread only.
fn drop_capabilities() {
    // The header selects version 3 and the calling thread. The data are the effective, permitted
    // and inheritable sets, in low and high words.
    let header = [0x2008_0522u32, 0];
    let empty_sets = [0u32; 6];
    // SAFETY: the kernel reads a header of two words and six words of data.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), empty_sets.as_ptr()) };
    assert_eq!(result, 0);
}

fn run_in_thread(body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(body).join().unwrap();
    });
}

#[test]
fn lowering_needs_no_rights_and_raising_without_them_is_an_error() {
    if !is_permitted_root() {
        return;
    }
    run_in_thread(|| {
        let elevator = Elevator::new().unwrap();
        let sleeper = Sleeper::start();
        let former = Policy::of(&Kernel, 0).unwrap();
        let guard = elevator.elevate_current(Priority::of::<5>()).unwrap();
        drop_capabilities();
        guard.set(Priority::of::<3>()).unwrap();
        let error = guard.set(Priority::of::<6>()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert_eq!(Policy::of(&Kernel, 0).unwrap().class(), Class::Fifo(3));
        assert_eq!(guard.release().unwrap(), Restored::ExceptResetOnFork);
        let policy = Policy::of(&Kernel, 0).unwrap();
        assert_eq!(policy.class(), former.class());

        let error = elevator.elevate(sleeper.tid, Priority::MIN).unwrap_err();
        assert!(error.is_rights(), "{error}");
        assert!(error.to_string().contains("CAP_SYS_NICE"), "{error}");
        assert_eq!(sleeper.policy().real_time(), 0);
        assert!(elevator.is_empty());
    });
}

#[test]
fn without_rights_a_real_time_thread_is_restored_to_its_former_priority() {
    if !is_permitted_root() {
        return;
    }
    for (policy, former) in [(libc::SCHED_FIFO, 4), (libc::SCHED_RR, 4)] {
        run_in_thread(|| {
            let elevator = Elevator::new().unwrap();
            Kernel.sched_setscheduler(0, policy, former).unwrap();
            let guard = elevator.elevate_current(Priority::of::<9>()).unwrap();
            drop_capabilities();
            let restored = guard.release().unwrap();
            assert_ne!(restored, Restored::Exactly);
            let now = Policy::of(&Kernel, 0).unwrap();
            assert_eq!(now.real_time(), former as u32, "{restored:?}");
            assert!(elevator.is_empty());
        });
    }
}

#[test]
fn a_thread_with_more_capabilities_is_restored_by_a_caller_that_has_them() {
    if !is_permitted_root() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let sleeper = Sleeper::start();
    let former = sleeper.policy();
    let guard = elevator.elevate(sleeper.tid, Priority::of::<9>()).unwrap();
    run_in_thread(|| {
        drop_capabilities();
        // The kernel protects a thread from callers with fewer capabilities.
        assert_eq!(
            guard.set(Priority::MIN).unwrap_err().raw_os_error(),
            Some(libc::EPERM)
        );
        assert!(guard.release().is_err());
    });
    assert_eq!(elevator.len(), 1);
    drop(elevator);
    assert_eq!(sleeper.policy().class(), former.class());
}

#[test]
fn an_error_for_missing_rights_names_the_remedy() {
    if !is_permitted_root() {
        return;
    }
    run_in_thread(|| {
        drop_capabilities();
        let rights = Rights::probe();
        if rights.limit.0 > 0 {
            crate::skipped("RLIMIT_RTPRIO permits SCHED_FIFO");
            return;
        }
        assert_eq!(rights.highest, None);
        assert!(!rights.capable);
        let missing = rights.require(Priority::MIN).unwrap_err();
        assert!(
            matches!(missing.obstacles(), [Obstacle::Capability { .. }]),
            "{missing}"
        );
        let text = missing.to_string();
        assert!(text.contains("sudo ") && !text.contains("setcap"), "{text}");
    });
}

#[test]
fn capabilities_of_a_user_namespace_are_not_mistaken_for_rights() {
    if !is_permitted_root() {
        return;
    }
    match Process::try_start("namespace", &[], enter_user_namespace) {
        Ok(mut process) => {
            let line = process.line("lacks");
            assert_eq!(line.as_deref(), Some("[UserNamespace] capable true"));
        }
        Err(error) => crate::skipped(format_args!("no user namespace here: {error}")),
    }
}

/// Enters a user namespace in which root stays root.
fn enter_user_namespace() -> std::io::Result<()> {
    let map = b"0 0 1\n";
    // SAFETY: the pointers are to a constant string and to `map`, which outlives the calls.
    unsafe {
        if libc::unshare(libc::CLONE_NEWUSER) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let file = libc::open(
            c"/proc/self/uid_map".as_ptr(),
            libc::O_WRONLY | libc::O_CLOEXEC,
        );
        if file < 0 || libc::write(file, map.as_ptr().cast(), map.len()) < 0 {
            return Err(std::io::Error::last_os_error());
        }
        libc::close(file);
    }
    Ok(())
}

#[test]
fn probing_changes_nothing_and_explains_a_refusal() {
    let before = Policy::of(&Kernel, 0).unwrap();
    println!("{}", Rights::probe());
    assert_eq!(Policy::of(&Kernel, 0).unwrap(), before);
    let faulty = Faulty::new();
    faulty.fail(Call::SetScheduler, 0, u64::MAX, libc::EPERM);
    let rights = Rights::probe_with(&faulty);
    assert_eq!(rights.highest, None);
    assert!(!rights.obstacles.is_empty());
    let text = rights.to_string();
    assert!(
        text.contains("not permitted") && text.contains("missing:"),
        "{text}"
    );
}

#[test]
fn unreadable_files_are_not_an_error() {
    let faulty = Faulty::new();
    faulty.fail(Call::ReadFile, 0, u64::MAX, libc::EACCES);
    let rights = Rights::probe_with(&faulty);
    assert!(
        rights.to_string().contains("throttling: unknown"),
        "{rights}"
    );
    assert_eq!(rights.group, None);
    assert!(faulty.calls() > 0 && Kernel.sched_getattr(0).is_ok());
}

/// The test creates a cgroup without real-time runtime in the v1 hierarchy. For a thread in this
/// cgroup, the error must say that RT time is missing, and the thread's policy must not change.
#[test]
fn a_refusal_in_a_cgroup_without_real_time_runtime_names_the_reason() {
    if !is_permitted_root() {
        return;
    }
    let rights = Rights::probe();
    let Some(group) = &rights.group else {
        crate::skipped("no cgroup v1 hierarchy limits real-time runtime here");
        return;
    };
    let parent = std::path::Path::new(&group.path).parent().unwrap();
    let cgroup = parent.join(format!("upshift-elevate-{}", std::process::id()));
    if let Err(error) = std::fs::create_dir(&cgroup) {
        crate::skipped(format_args!("{}: {error}", cgroup.display()));
        return;
    }
    let mut child = std::process::Command::new("sleep")
        .arg("300")
        .spawn()
        .unwrap();
    std::fs::write(cgroup.join("cgroup.procs"), child.id().to_string()).unwrap();
    let former = Policy::of(&Kernel, child.id() as i32).unwrap();
    let elevator = Elevator::with_guardian().unwrap();
    let error = elevator
        .elevate(child.id() as i32, Priority::MIN)
        .unwrap_err();
    let policy = Policy::of(&Kernel, child.id() as i32).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    crate::process::wait_until("the cgroup can be removed", || {
        std::fs::remove_dir(&cgroup).is_ok()
    });
    assert!(error.is_rights(), "{error}");
    assert!(error.to_string().contains("RT time"), "{error}");
    assert_eq!(policy.class(), former.class());
    assert!(elevator.is_empty());
}
