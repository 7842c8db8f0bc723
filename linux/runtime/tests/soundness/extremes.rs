//! Tests with extreme settings and arguments, and with file offsets that are out of range.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::time::Duration;

use upshift::fs::File;
use upshift::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use upshift::net::UnixStream;
use upshift::time::sleep;
use upshift::{Handle, Level, Preemption, Runtime, yield_now};

use super::assert_runtime_works;

/// Programs compute settings from their input, so an impossible setting is an error and must not
/// panic.
#[test]
fn extreme_settings_do_not_panic() {
    let changes: [fn(upshift::Builder) -> upshift::Builder; 16] = [
        |builder| builder.vcpus(usize::MAX),
        |builder| builder.vcpus(0),
        |builder| builder.pin([usize::MAX]),
        |builder| builder.ring_entries(u32::MAX),
        |builder| builder.ring_entries(0),
        |builder| builder.buffers(u16::MAX, u32::MAX),
        |builder| builder.buffers(1 << 15, u32::MAX),
        |builder| builder.floor(Level::URGENT, u8::MAX),
        |builder| builder.chaos(u64::MAX),
        |builder| builder.spin(Duration::MAX),
        |builder| builder.reap_interval(Duration::MAX),
        |builder| builder.quantum(Duration::MAX),
        |builder| builder.max_suspended(usize::MAX),
        |builder| builder.blocking_threads(usize::MAX),
        |builder| builder.stall_limit(Duration::MAX),
        |builder| builder.name("\u{10ffff}".repeat(1000)),
    ];
    for preemption in [Preemption::Off, Preemption::Preferred] {
        for (n, change) in changes.iter().enumerate() {
            let builder = change(Runtime::builder().vcpus(1)).preemption(preemption);
            let result = catch_unwind(AssertUnwindSafe(|| builder.build()));
            let Ok(runtime) = result else {
                panic!("setting {n} panics");
            };
            // The runtime is not used, because some settings, for example that of `spin`, mean an
            // endless wait.
            drop(runtime);
        }
    }
}

#[test]
fn extreme_arguments_do_not_break_the_runtime() {
    use upshift::sync::{RwLock, Semaphore, mpsc};
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let ids = [0, 1, 255, 256, 257, u64::from(u32::MAX), u64::MAX, 1 << 32];
        let handle = Handle::current().unwrap();
        for id in ids.map(upshift::CoroutineId::from_u64) {
            if upshift::get_cid() == Some(id) {
                continue;
            }
            let _ = (handle.wake(id), handle.state(id));
            let _ = (handle.reprio(id, Level::at::<9>()), handle.cancel(id));
            let _ = (upshift::wake(id), upshift::reprio(id, Level::at::<9>()));
        }
        for time in [Duration::MAX, Duration::from_secs(u64::MAX / 2)] {
            let mut nap = Box::pin(sleep(time));
            assert!(futures_util::poll!(&mut nap).is_pending());
            let deadline = nap.deadline();
            nap.as_mut().reset(deadline);
            assert!(futures_util::poll!(&mut nap).is_pending());
            let result = upshift::time::timeout(time, yield_now()).await;
            assert!(result.is_ok());
            let mut interval = upshift::time::interval(time);
            interval.tick().await;
            assert!(futures_util::poll!(Box::pin(interval.tick())).is_pending());
            interval.reset_after(time);
            assert_eq!(interval.period().min(time), interval.period());
        }
        let semaphore = Semaphore::new(Semaphore::MAX_PERMITS);
        drop(semaphore.acquire_many(u32::MAX).await.unwrap());
        assert_eq!(semaphore.forget_permits(usize::MAX), Semaphore::MAX_PERMITS);
        assert!(catch_unwind(AssertUnwindSafe(|| semaphore.add_permits(usize::MAX))).is_err());
        semaphore.add_permits(1);
        drop(semaphore.acquire().await.unwrap());
        let (sender, mut receiver) = mpsc::channel::<u8>(usize::MAX);
        assert!(sender.try_reserve_many(usize::MAX).is_err());
        let permits = sender.reserve_many(usize::MAX - 1).await.unwrap();
        assert!(sender.try_send(1).is_err() && sender.capacity() == 0);
        drop(permits);
        sender.send(1).await.unwrap();
        assert!(sender.try_reserve_many(usize::MAX).is_err());
        let mut messages = Vec::new();
        assert_eq!(receiver.recv_many(&mut messages, usize::MAX).await, 1);
        let lock = RwLock::with_max_readers((), u32::MAX >> 3);
        drop((lock.read().await, lock.try_read().unwrap()));
        let file = upshift::fs::File::open("/proc/self/exe").await.unwrap();
        for offset in [1 << 63, u64::MAX - 1, u64::MAX >> 1, u64::MAX] {
            drop(file.read_at(vec![0; 1 << 20], offset).await);
            drop(file.read_vectored_at(vec![vec![0; 9]; 2000], offset).await);
            let (result, _) = file.write_all_at(vec![0; 1 << 20], offset).await;
            assert!(result.is_err());
            assert!(file.set_len(offset).await.is_err());
            let mut stream = upshift::fs::FileStream::at(file.clone(), offset);
            drop(AsyncReadExt::read(&mut stream, &mut [0; 100]).await);
            drop(AsyncWriteExt::write_all(&mut stream, &[0; 100]).await);
            drop(AsyncWriteExt::flush(&mut stream).await);
            let sought = stream.seek(std::io::SeekFrom::Start(offset)).await;
            assert_eq!(sought.is_ok(), i64::try_from(offset).is_ok());
            assert!(
                stream
                    .seek(std::io::SeekFrom::Current(i64::MAX))
                    .await
                    .is_err()
            );
        }
        assert_runtime_works().await;
    });
}

#[test]
fn consuming_more_than_the_buffer_holds_is_harmless() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        use upshift::io::AsyncBufReadExt;
        let (mut reader, mut writer) = upshift::io::pipe().unwrap();
        let (mut socket, mut peer) = UnixStream::pair().unwrap();
        let mut file = File::open("/proc/self/exe").await.unwrap().into_stream();
        AsyncWriteExt::write_all(&mut writer, b"pipe")
            .await
            .unwrap();
        AsyncWriteExt::write_all(&mut peer, b"socket")
            .await
            .unwrap();
        let mut sources: [&mut (dyn upshift::io::AsyncBufRead + Unpin); 3] =
            [&mut reader, &mut socket, &mut file];
        for source in &mut sources {
            let length = source.fill_buf().await.unwrap().len();
            Pin::new(&mut **source).consume(1);
            Pin::new(&mut **source).consume(usize::MAX);
            assert!(length > 1);
        }
    });
}

/// A long write is split into pieces. A pipe ignores the offset, so any offset is allowed, and the
/// addition of the first piece's length to the offset must not overflow.
#[test]
fn a_long_write_to_a_pipe_is_made_in_pieces() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let (mut reader, writer) = upshift::io::pipe().unwrap();
        let writer = writer.into_owned_fd().unwrap();
        let file = File::from_std(std::fs::File::from(writer));
        let read_all = async {
            let mut bytes = vec![0; 1 << 20];
            AsyncReadExt::read_exact(&mut reader, &mut bytes)
                .await
                .unwrap();
            bytes
        };
        let (read, (written, _)) =
            futures_util::join!(read_all, file.write_all_at(vec![7; 1 << 20], u64::MAX));
        written.unwrap();
        assert!(read.iter().all(|&byte| byte == 7));
    });
}
