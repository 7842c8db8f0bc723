//! Creates and removes the file of a listening Unix socket ([`SocketFile`]), and checks the
//! directories that lead to it.
//!
//! A server with root's privileges acts on a path that a configuration names. Two rules prevent
//! another user from redirecting the server to a file that belongs to root:
//!
//! * Every directory on the way belongs to root or to this user, and nobody else may write to it
//!   ([`check_directories`]).
//! * Owner and mode are changed through a descriptor of the file that was made, never by its name.
//!
//! The file of a dead server is found by a failed connection, then removed, then replaced. Another
//! server may take the same three steps at the same time, and no system call combines them.
//! Therefore a process that creates or removes such a file holds the lock of `PATH.lock` meanwhile
//! ([`Lock`]). The kernel (`flock`) releases the lock when the process that holds it ends.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Gid, Mode, OFlags, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Time limit for acquiring a lock. A server holds a lock either for a few system calls or for as
/// long as it runs.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The file of a listening socket. The file is removed on drop, unless its name then refers to
/// another file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Path descriptor. Until it is closed, no other file has the same inode.
    file: File,
    /// Set if the drop must take the lock to remove the file; otherwise the caller holds the lock
    /// all the time.
    needs_lock: bool,
}

impl SocketFile {
    /// Takes the file of a socket that was just bound to `path`. The caller holds the lock of
    /// `path` for as long as the value lives.
    ///
    /// # Errors
    /// Errors of the kernel, or an error if the file is not a socket.
    pub fn bound_to(path: &Path) -> io::Result<SocketFile> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        if !file.metadata()?.file_type().is_socket() {
            let error = "another program has replaced the socket";
            return Err(io::Error::other(error));
        }
        Ok(SocketFile {
            path: path.to_path_buf(),
            file,
            needs_lock: false,
        })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file to a group.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn set_group(&self, group: u32) -> io::Result<()> {
        let (group, flags) = (Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH);
        Ok(rustix::fs::chownat(&self.file, "", None, group, flags)?)
    }

    /// Sets the permission bits of the file.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        // The mode is set through the descriptor's link in `/proc`, because `fchmod` refuses a path
        // descriptor. The link leads to the opened file, even if the name refers to another file.
        let opened = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        fs::set_permissions(opened, Permissions::from_mode(mode))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Without the lock the file stays, and the next server removes it.
        let lock = self.needs_lock.then(|| Lock::acquire(&self.path));
        if !matches!(lock, Some(Err(_))) && is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The right to create and to remove the file of a socket. The file of the lock is removed on drop.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Takes the lock of `socket`, within two seconds. The file of the lock contains the id of this
    /// process.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if another process holds the lock ([`Lock::holder`]); errors of
    /// the kernel.
    pub fn acquire(socket: &Path) -> io::Result<Lock> {
        let path = Lock::path(socket);
        let with_path =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let since = Instant::now();
        loop {
            let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let mode = Mode::from_raw_mode(0o600);
            let opened = rustix::fs::open(&path, flags, mode);
            let mut file = File::from(opened.map_err(|error| with_path(error.into()))?);
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_at(&file, &path) => {
                    // The content is for people only.
                    let _ = file.set_len(0);
                    let _ = writeln!(file, "{}", std::process::id());
                    return Ok(Lock { path, _file: file });
                }
                // The holder has removed the file before it released the lock.
                Ok(()) => continue,
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(error) => return Err(with_path(error.into())),
            }
            if since.elapsed() > LOCK_TIMEOUT {
                let why = "another server has begun to listen there";
                return Err(with_path(io::Error::new(io::ErrorKind::AddrInUse, why)));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the process that holds the lock of `socket`, or held it last.
    pub fn holder(socket: &Path) -> Option<i32> {
        let text = fs::read_to_string(Lock::path(socket)).ok()?;
        text.trim().parse().ok()
    }

    fn path(socket: &Path) -> PathBuf {
        let mut path = OsString::from(socket);
        path.push(".lock");
        PathBuf::from(path)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The file is removed before it is closed, which releases the lock.
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns whether `path` still names the open `file`.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let open = file.metadata().map(identity).ok();
    open.is_some() && open == fs::symlink_metadata(path).map(identity).ok()
}

/// Creates a socket that listens as soon as [`listen`](net::listen) is called on it. A file that a
/// dead server has left is removed; a server that still listens is not disturbed. The caller
/// holds the lock of `path`. The file never has more permissions than `mode`; by default the umask
/// decides.
///
/// # Errors
/// [`io::ErrorKind::AddrInUse`] if a server listens there, or the file is not a socket; errors of
/// the kernel.
pub fn bind(
    path: &Path,
    kind: SocketType,
    flags: SocketFlags,
    mode: Option<u32>,
) -> io::Result<(OwnedFd, SocketFile)> {
    let address = address(path)?;
    remove_stale(path, &address, kind)?;
    let flags = flags | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    if let Some(mode) = mode {
        // The kernel creates the file with the mode of the socket, less the umask.
        fchmod(&socket, Mode::from_raw_mode(mode))?;
    }
    net::bind(&socket, &address)?;
    let file = SocketFile::bound_to(path)?;
    if let Some(mode) = mode {
        file.set_mode(mode)?;
    }
    Ok((socket, file))
}

/// Listens on a path like [`bind`], and holds the lock while the file is created or removed.
///
/// # Errors
/// Returns the errors of [`bind`] and [`Lock::acquire`].
pub fn listen(
    path: &Path,
    mode: Option<u32>,
    backlog: i32,
) -> io::Result<(UnixListener, SocketFile)> {
    address(path)?;
    let _lock = Lock::acquire(path)?;
    let (socket, mut file) = bind(path, SocketType::STREAM, SocketFlags::empty(), mode)?;
    file.needs_lock = true;
    net::listen(&socket, backlog)?;
    Ok((UnixListener::from(socket), file))
}

fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|error| match error {
        Errno::NAMETOOLONG => {
            let why = "the path is too long: 108 bytes at most";
            io::Error::new(io::ErrorKind::InvalidFilename, why)
        }
        error => error.into(),
    })
}

/// Removes a socket without a listener.
fn remove_stale(path: &Path, address: &SocketAddrUnix, kind: SocketType) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    let error = |why| io::Error::new(io::ErrorKind::AddrInUse, why);
    if !metadata.file_type().is_socket() {
        return Err(error("there is a file that is no socket: remove it"));
    }
    // The probe does not wait for a busy server.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    match net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        // A listener of another socket type counts, too.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(error("another server listens there")),
        Err(error) => Err(error.into()),
    }
}

/// Refuses a file that another user could replace. Each directory on the way to `path` must belong
/// to root or to this user, and nobody else may write to it. Above the last directory, a directory
/// that all users may write to is permitted if it is sticky (`/tmp`). Directories that do not exist
/// are not checked.
///
/// # Errors
/// An error that names the directory that another user may write to; errors of the kernel.
pub fn check_directories(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    let nearest = parent.ancestors().find(|path| path.exists());
    let real = nearest.map(fs::canonicalize).transpose()?;
    let is_last =
        |path: &Path| path == parent || (Some(parent) == nearest && Some(path) == real.as_deref());
    for directory in parent
        .ancestors()
        .chain(real.iter().flat_map(|path| path.ancestors()))
    {
        // A link is checked itself, and so is the directory to which it leads.
        for metadata in [fs::symlink_metadata(directory), fs::metadata(directory)] {
            match metadata {
                Ok(metadata) => check_directory(directory, &metadata, is_last(directory))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Bit of a sticky directory, in which only the owner of a file may rename or remove the file.
const STICKY_BIT: u32 = 0o1000;
/// Bits of a file that the group or all users may write to.
const WRITABLE_BY_OTHERS: u32 = 0o022;

fn check_directory(directory: &Path, metadata: &fs::Metadata, is_last: bool) -> io::Result<()> {
    let own_uid = rustix::process::geteuid().as_raw();
    let directory = directory.display();
    if ![0, own_uid].contains(&metadata.uid()) && !is_unmapped(metadata.uid()) {
        return Err(io::Error::other(format!(
            "{directory} belongs to user {}, who could put another file there: `chown` it to root, or give another path",
            metadata.uid()
        )));
    }
    let is_sticky = metadata.mode() & STICKY_BIT != 0 && !is_last;
    if metadata.is_dir() && metadata.mode() & WRITABLE_BY_OTHERS != 0 && !is_sticky {
        return Err(io::Error::other(format!(
            "others may write to {directory} and put another file there: give a path in a directory that only root or this user may write to"
        )));
    }
    Ok(())
}

/// Returns whether the user has no number in this user namespace. A server in such a namespace
/// lacks root's rights over the files of such users, among them the machine's root.
fn is_unmapped(uid: u32) -> bool {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_first = map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    !is_first && number("/proc/sys/kernel/overflowuid") == Some(uid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A directory of the calling test, which is removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Folder {
            let name = format!("upshift-{test}-{}", std::process::id());
            let folder = Folder(std::env::temp_dir().join(name));
            fs::create_dir(&folder.0).unwrap();
            folder.chmod("", 0o755);
            folder
        }

        fn make(&self, name: &str) -> PathBuf {
            fs::create_dir(self.0.join(name)).unwrap();
            self.chmod(name, 0o755);
            self.0.join(name)
        }

        fn chmod(&self, name: &str, mode: u32) {
            fs::set_permissions(self.0.join(name), Permissions::from_mode(mode)).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_directory_that_others_may_write_is_refused() {
        let folder = Folder::new("written");
        folder.make("above");
        let socket = folder.make("above/last").join("d.sock");
        for (above, last, good) in [
            (0o755, 0o755, true),
            (0o755, 0o700, true),
            (0o755, 0o775, false),
            (0o755, 0o757, false),
            (0o755, 0o1777, false),
            (0o775, 0o755, false),
            (0o1777, 0o755, true),
        ] {
            folder.chmod("above", above);
            folder.chmod("above/last", last);
            let checked = check_directories(&socket);
            assert_eq!(checked.is_ok(), good, "{above:o} {last:o}: {checked:?}");
        }
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        let folder = Folder::new("owned");
        let socket = folder.make("theirs").join("deeper/d.sock");
        if chown(folder.0.join("theirs"), Some(65_534), None).is_err() {
            eprintln!("skipped: needs root");
            return;
        }
        let error = check_directories(&socket).unwrap_err().to_string();
        assert!(error.contains("theirs belongs to user 65534"), "{error}");
    }

    #[test]
    fn a_symbolic_link_is_checked_by_its_target() {
        let folder = Folder::new("linked");
        folder.make("open");
        symlink("open", folder.0.join("link")).unwrap();
        let socket = folder.0.join("link/d.sock");
        assert!(check_directories(&socket).is_ok());
        folder.chmod("open", 0o777);
        assert!(check_directories(&socket).is_err());
    }

    #[test]
    fn owner_and_mode_are_set_on_the_socket_even_if_its_name_is_replaced() {
        let folder = Folder::new("replaced");
        let (socket, secret) = (folder.0.join("d.sock"), folder.0.join("secret"));
        fs::write(&secret, "secret").unwrap();
        folder.chmod("secret", 0o600);
        let _listener = UnixListener::bind(&socket).unwrap();
        let file = SocketFile::bound_to(&socket).unwrap();
        file.set_mode(0o640).unwrap();
        assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o640);
        fs::remove_file(&socket).unwrap();
        symlink(&secret, &socket).unwrap();
        file.set_mode(0o666).unwrap();
        let group = fs::metadata(&secret).unwrap().gid();
        file.set_group(group).unwrap();
        assert_eq!(fs::metadata(&secret).unwrap().mode() & 0o777, 0o600);
        assert!(SocketFile::bound_to(&socket).is_err());
        drop(file);
        assert!(fs::symlink_metadata(&socket).is_ok(), "a link was removed");
    }

    #[test]
    fn a_socket_has_the_requested_mode_and_is_removed_with_its_listener() {
        let folder = Folder::new("mode");
        let path = folder.0.join("socket");
        let (listener, file) = listen(&path, Some(0o666), 4).unwrap();
        let mode = |path| fs::metadata(path).unwrap().mode() & 0o777;
        // The umask does not apply.
        assert_eq!(mode(&path), 0o666);
        UnixStream::connect(&path).unwrap();
        let message = listen(&path, None, 4).unwrap_err().to_string();
        assert!(message.contains("another server"), "{message}");
        drop((listener, file));
        assert!(!path.exists());
    }

    #[test]
    fn only_the_socket_of_a_dead_server_is_replaced() {
        let folder = Folder::new("stale");
        let path = folder.0.join("socket");
        // The listener of the standard library leaves its file behind.
        drop(UnixListener::bind(&path).unwrap());
        let (first, first_file) = listen(&path, Some(0o600), 4).unwrap();
        drop(first);
        let (_second, _file) = listen(&path, Some(0o600), 4).unwrap();
        // The file of a successor stays, too.
        drop(first_file);
        UnixStream::connect(&path).unwrap();
        let other = folder.0.join("file");
        fs::write(&other, "text").unwrap();
        assert!(listen(&other, None, 4).is_err());
        assert_eq!(fs::read_to_string(&other).unwrap(), "text");
    }

    /// Only one server listens. The other servers report that a server listens, and leave the file
    /// alone.
    #[test]
    fn one_of_several_concurrent_servers_listens() {
        let folder = Folder::new("race");
        let path = folder.0.join("socket");
        for _ in 0..200 {
            drop(UnixListener::bind(&path).unwrap());
            let start = std::sync::Barrier::new(4);
            let begin = || {
                start.wait();
                listen(&path, None, 16)
            };
            let mut listening: Vec<_> = thread::scope(|scope| {
                let all: Vec<_> = (0..4).map(|_| scope.spawn(begin)).collect();
                let all = all.into_iter().map(|thread| thread.join().unwrap());
                all.filter_map(|result| match result {
                    Ok(one) => Some(one),
                    Err(error) => {
                        let message = error.to_string();
                        assert!(message.contains("another server"), "{message}");
                        None
                    }
                })
                .collect()
            });
            assert_eq!(listening.len(), 1);
            let (listener, file) = listening.pop().unwrap();
            let client = UnixStream::connect(&path).unwrap();
            listener.accept().unwrap();
            drop(client);
            // One server ends while the next one starts.
            drop(listener);
            let (_, next) = thread::scope(|scope| {
                scope.spawn(|| drop(file));
                listen(&path, None, 16).unwrap()
            });
            assert!(path.exists());
            drop(next);
            assert!(!path.exists());
        }
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    }

    #[test]
    fn a_held_lock_is_reported() {
        let folder = Folder::new("lock");
        let path = folder.0.join("socket");
        let _lock = Lock::acquire(&path).unwrap();
        let message = listen(&path, None, 4).unwrap_err().to_string();
        assert!(message.contains("socket.lock: another server"), "{message}");
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error() {
        let folder = Folder::new("long");
        let room = 108 - folder.0.as_os_str().len() - 1;
        let path = folder.0.join("x".repeat(room));
        drop(listen(&path, None, 4).unwrap());
        let long = listen(&folder.0.join("x".repeat(room + 1)), None, 4);
        let message = long.unwrap_err().to_string();
        assert!(message.contains("108 bytes"), "{message}");
    }

    #[test]
    fn a_server_that_does_not_accept_is_not_waited_for() {
        let folder = Folder::new("busy");
        let path = folder.0.join("socket");
        let (_listener, _file) = listen(&path, None, 0).unwrap();
        let mut clients = Vec::new();
        loop {
            let (kind, flags) = (SocketType::STREAM, SocketFlags::NONBLOCK);
            let client = net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
            let address = SocketAddrUnix::new(&path).unwrap();
            if net::connect(&client, &address) == Err(Errno::AGAIN) {
                break;
            }
            clients.push(client);
        }
        assert!(listen(&path, None, 0).is_err());
    }
}
