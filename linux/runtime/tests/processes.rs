//! Tests of child processes, pipes and signals.

#[path = "support/block_on.rs"]
mod block_on;

use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::time::{Duration, Instant};

use futures_util::poll;
use upshift::io::{self, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, StreamExt};
use upshift::process::{Child, Command, Stdio};
use upshift::signal::{SIGTERM, SIGUSR1, SIGUSR2, Signal, Signals};
use upshift::{Preemption, Priority, Runtime, time};

use block_on::block_on;

fn shell_command(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(script);
    command
}

/// Returns whether a process with this PID exists, including a zombie.
fn exists(id: u32) -> bool {
    std::path::Path::new(&format!("/proc/{id}")).exists()
}

async fn wait_until_reaped(id: u32) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while exists(id) {
        assert!(Instant::now() < deadline, "process {id} was not reaped");
        time::sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn output_status_arguments_and_environment_are_passed() {
    block_on(async {
        let mut command = shell_command("echo $NAME; echo $PWD >&2; exit 7");
        let output = command
            .env("NAME", "value")
            .current_dir("/")
            .output()
            .await
            .unwrap();
        assert_eq!(output.status.code(), Some(7));
        assert_eq!(
            (&output.stdout[..], &output.stderr[..]),
            (&b"value\n"[..], &b"/\n"[..])
        );
        // A command can be run again.
        assert_eq!(command.output().await.unwrap().stdout, b"value\n");
        let status = shell_command("exit 3").status().await.unwrap();
        assert_eq!(status.code(), Some(3));
    });
}

#[test]
fn an_error_of_a_spawn_names_the_program() {
    block_on(async {
        let error = Command::new("no-such-program-here")
            .spawn()
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(
            error.to_string().contains("no-such-program-here"),
            "{error}"
        );
    });
}

#[test]
fn more_data_than_a_pipe_holds_is_sent_in_both_directions() {
    block_on(async {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .await
            .unwrap();
        let sent: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let write = async {
            stdin.write_all(&sent).await.unwrap();
            drop(stdin);
        };
        let mut received = Vec::new();
        let ((), read) = futures_util::join!(write, stdout.read_to_end(&mut received));
        read.unwrap();
        assert!(received == sent);
        assert!(child.wait().await.unwrap().success());
        // A second wait returns the same status.
        assert!(child.wait().await.unwrap().success());
        assert_eq!(child.id(), None);
    });
}

#[test]
fn the_lines_of_a_child_arrive_as_they_are_written() {
    block_on(async {
        let mut child = shell_command("for n in 1 2 3; do echo line $n; sleep 0.01; done")
            .stdout(Stdio::piped())
            .spawn()
            .await
            .unwrap();
        let mut lines = child.stdout.take().unwrap().lines();
        for n in 1..=3 {
            assert_eq!(lines.next().await.unwrap().unwrap(), format!("line {n}"));
        }
        assert!(lines.next().await.is_none());
        child.wait().await.unwrap();
    });
}

async fn spawn_sleep(kill_on_drop: bool) -> Child {
    let mut command = Command::new("sleep");
    command.arg("60").kill_on_drop(kill_on_drop);
    command.spawn().await.unwrap()
}

#[test]
fn a_wait_may_be_dropped_and_a_signal_ends_the_child() {
    block_on(async {
        let mut child = spawn_sleep(true).await;
        assert!(child.try_wait().unwrap().is_none());
        {
            let mut waiting = Box::pin(child.wait());
            assert!(poll!(waiting.as_mut()).is_pending());
        }
        child.send_signal(SIGTERM).unwrap();
        assert_eq!(child.wait().await.unwrap().signal(), Some(SIGTERM));
        assert!(child.send_signal(SIGTERM).is_err());
        let mut child = spawn_sleep(true).await;
        child.kill().await.unwrap();
        assert_eq!(child.wait().await.unwrap().signal(), Some(9));
    });
}

#[test]
fn a_dropped_child_is_always_reaped_and_killed_if_requested() {
    block_on(async {
        let child = spawn_sleep(true).await;
        let id = child.id().unwrap();
        drop(child);
        wait_until_reaped(id).await;

        let mut running = shell_command("read line; exit 0")
            .stdin(Stdio::piped())
            .spawn()
            .await
            .unwrap();
        let id = running.id().unwrap();
        let stdin = running.stdin.take();
        drop(running);
        time::sleep(Duration::from_millis(20)).await;
        assert!(exists(id), "the child was killed");
        drop(stdin);
        wait_until_reaped(id).await;
    });
}

#[test]
fn children_that_outlive_their_runtime_are_reaped() {
    let mut ids = Vec::new();
    for is_in_coroutine in [false, true] {
        let runtime = Runtime::builder().vcpus(1).build().unwrap();
        runtime.block_on(async {
            let child = shell_command("sleep 0.3").spawn().await.unwrap();
            ids.push(child.id().unwrap());
            if is_in_coroutine {
                let holder = async move {
                    let _child = child;
                    std::future::pending::<()>().await;
                };
                upshift::spawn(holder, Priority::Inherit).detach();
                upshift::yield_now().await;
            }
        });
        drop(runtime);
    }
    block_on(async {
        for id in ids {
            wait_until_reaped(id).await;
        }
        // The reaper thread ends with the last child.
        let deadline = Instant::now() + Duration::from_secs(30);
        while has_thread("upshift-reaper") {
            assert!(Instant::now() < deadline, "the reaper thread has not ended");
            time::sleep(Duration::from_millis(2)).await;
        }
    });
}

fn has_thread(name: &str) -> bool {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let mut names =
        threads.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("comm")).ok());
    names.any(|comm| comm.trim_end() == name)
}

#[test]
fn a_dropped_spawn_leaves_no_process() {
    block_on(async {
        // The duration identifies the children of this process, because other tests may run
        // meanwhile.
        let time_asleep = format!("60.{}", std::process::id());
        let mut command = Command::new("sleep");
        command.arg(&time_asleep).kill_on_drop(true);
        for _ in 0..5 {
            let mut spawning = Box::pin(command.spawn());
            // The spawn is hardly ever ready at the first poll.
            let _ = poll!(spawning.as_mut());
        }
        // The command still works, and the children of the dropped spawns have been killed.
        let mut child = command.spawn().await.unwrap();
        child.kill().await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while count_sleepers(&time_asleep) != 0 {
            assert!(Instant::now() < deadline, "a child is still running");
            time::sleep(Duration::from_millis(2)).await;
        }
    });
}

#[test]
fn a_dropped_spawn_leaves_no_zombie() {
    // The name of this link to the shell identifies the children of this process, including
    // zombies.
    let name = format!("up-{}", std::process::id());
    let shell = std::env::temp_dir().join(&name);
    std::os::unix::fs::symlink("/bin/sh", &shell).unwrap();
    block_on(async {
        for kill_on_drop in [true, false] {
            let mut command = Command::new(&shell);
            command.with_std(|command| _ = command.arg0("sh"));
            command.args(["-c", "read line"]).stdin(Stdio::piped());
            command.kill_on_drop(kill_on_drop);
            for _ in 0..5 {
                let mut spawning = Box::pin(command.spawn());
                // The spawn is hardly ever ready at the first poll.
                let _ = poll!(spawning.as_mut());
            }
            let id = command.spawn().await.unwrap().id().unwrap();
            wait_until_reaped(id).await;
            // When the threads for blocking functions are idle, all children have been started.
            let runtime = upshift::Handle::current().unwrap();
            let busy = || {
                let threads = runtime.metrics().blocking;
                threads.queued != 0 || threads.idle != threads.threads
            };
            let deadline = Instant::now() + Duration::from_secs(30);
            while busy() || count_by_name(&name) != 0 {
                assert!(Instant::now() < deadline, "a child or a zombie is left");
                time::sleep(Duration::from_millis(2)).await;
            }
        }
    });
    std::fs::remove_file(shell).unwrap();
}

/// Returns the number of processes with this name, including zombies.
fn count_by_name(name: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap();
    let names =
        processes.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("comm")).ok());
    names.filter(|comm| comm.trim_end() == name).count()
}

/// Returns the number of processes that run `sleep` with this argument.
fn count_sleepers(seconds: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap();
    let command_lines = processes.filter_map(|entry| {
        let path = entry.ok()?.path().join("cmdline");
        std::fs::read_to_string(path).ok()
    });
    let command_line = format!("sleep\0{seconds}\0");
    command_lines.filter(|line| *line == command_line).count()
}

#[test]
fn children_can_be_connected_by_pipes_and_start_unpinned() {
    let before = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let before = allowed_cpus(&before);
    let runtime = Runtime::builder()
        .vcpus(2)
        .preemption(Preemption::Preferred)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (reader, writer) = io::pipe().unwrap();
        let mut first = shell_command("echo one; echo two")
            .stdout(Stdio::try_from(writer).unwrap())
            .spawn()
            .await
            .unwrap();
        let second = Command::new("sort")
            .arg("-r")
            .stdin(Stdio::try_from(reader).unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .await
            .unwrap();
        first.wait().await.unwrap();
        // The command was dropped with this process's copy of the writing end.
        let output = second.wait_with_output();
        let output = time::timeout(Duration::from_secs(30), output).await;
        assert_eq!(output.unwrap().unwrap().stdout, b"two\none\n");

        let output = Command::new("cat").arg("/proc/self/status").output().await;
        let status_of_child = String::from_utf8(output.unwrap().stdout).unwrap();
        assert_eq!(allowed_cpus(&status_of_child), before);
    });
}

fn allowed_cpus(status: &str) -> &str {
    let mut lines = status.lines();
    lines
        .find(|line| line.starts_with("Cpus_allowed:"))
        .unwrap()
}

#[test]
fn a_closed_end_of_a_pipe_is_an_error_or_the_end() {
    block_on(async {
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        let error = writer.write_all(b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        let (mut reader, writer) = io::pipe().unwrap();
        let mut buffer = [0; 8];
        {
            let mut reading = Box::pin(reader.read(&mut buffer));
            assert!(poll!(reading.as_mut()).is_pending());
        }
        let reading = upshift::spawn(
            async move { reader.read(&mut [0; 8]).await.unwrap() },
            Priority::Inherit,
        );
        upshift::yield_now().await;
        drop(writer);
        assert_eq!(reading.await.unwrap(), 0);
    });
}

#[test]
fn signals_are_distinguished_and_none_is_lost() {
    block_on(async {
        let mut both = Signals::new([SIGUSR1, SIGUSR2]).unwrap();
        let mut second = Signal::new(SIGUSR2).unwrap();
        let raise = |name: &'static str| async move {
            let id = std::process::id();
            let status = shell_command(&format!("kill -{name} {id}"))
                .status()
                .await
                .unwrap();
            assert!(status.success());
        };
        {
            let mut waiting = Box::pin(both.recv());
            assert!(poll!(waiting.as_mut()).is_pending());
        }
        raise("USR2").await;
        raise("USR1").await;
        let mut received = [both.recv().await.unwrap(), both.recv().await.unwrap()];
        received.sort_unstable();
        assert_eq!(received, [SIGUSR1, SIGUSR2]);
        second.recv().await.unwrap();
        let waiting = time::timeout(Duration::from_millis(5), both.recv()).await;
        assert!(waiting.is_err());
        for invalid in [0, 9, 65, -1] {
            let error = Signals::new([SIGUSR1, invalid]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    });
}

/// Signals need no ring, because a thread wakes the future. So any executor may poll the future.
#[test]
fn signals_wake_a_waiter_outside_of_a_runtime() {
    use std::task::{Context, Poll, Wake};
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    // No other test of this process sends this signal.
    let mut signal = Signal::new(upshift::signal::SIGWINCH).unwrap();
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut cx = Context::from_waker(&waker);
    let mut waiting = std::pin::pin!(signal.recv());
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    // SAFETY: `raise` takes no pointer.
    unsafe { libc::raise(libc::SIGWINCH) };
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match waiting.as_mut().poll(&mut cx) {
            Poll::Ready(result) => return result.unwrap(),
            Poll::Pending => {}
        }
        assert!(Instant::now() < deadline, "the signal did not arrive");
        std::thread::park_timeout(Duration::from_secs(1));
    }
}

#[test]
fn futures_of_children_may_move_between_threads() {
    fn assert_send<T: Send>(_: T) {}
    #[expect(dead_code, reason = "it only has to compile")]
    fn all(
        command: &'static mut Command,
        child: &'static mut Child,
        signals: &'static mut Signals,
    ) {
        assert_send(child.wait());
        assert_send(command.output());
        assert_send(signals.recv());
    }
}
