//! The table of system calls.
//!
//! A call is made by `ecall` with the number in a7 and arguments in a0 to a5; the result is in a0,
//! negative if it is an [`Error`](crate::Error).
//!
//! `now` calls are answered at once; `thread` calls are about the calling thread. `later` calls may
//! take time: each becomes a kernel coroutine with the level of the caller. They have two forms. In
//! the synchronous form the caller waits. With [`ASYNCHRONOUS`](crate::number::ASYNCHRONOUS) added
//! to the number the call returns at once, and later the completion ring gets the result together
//! with two words that were in a5 (a token) and a6 (the id of the coroutine to wake). A call that
//! is over at once has no completion, see [`AT_ONCE`](crate::number::COMPLETED). The user library
//! declares each of them once for both forms, in its module `calls`.

/// Calls `$with! { … }` with the table: `NUMBER KIND NAME(ARGUMENTS);`, each with
/// its documentation.
#[macro_export]
macro_rules! system_calls {
    ($with:ident) => {
        $with! {
            /// Ends the process with a status, of which the lowest 8 bits count.
            0 now exit(status);
            /// Lets others of the same level have their turn.
            1 now yield_cpu();
            /// The number of ticks since the machine started.
            2 now clock();
            /// Maps a number of pages of zeroes and returns their address.
            3 later map(pages);
            /// Gives the calling process another level, not above its ceiling.
            4 now set_level(level);
            /// Makes a pipe; returns its reading end, plus its writing end times 2³².
            5 now pipe();
            /// Closes a file descriptor.
            6 now close(file);
            /// Starts a program as described by the [`SpawnRequest`](crate::SpawnRequest) at an
            /// address; returns its process number. The program is in the archive, or else a file
            /// of the disk.
            7 later spawn(request);
            /// Ends a child, with status [`KILLED`](crate::number::KILLED).
            8 now kill(process);
            /// Returns the free memory, in pages.
            9 now free_pages();
            /// Waits until the completion ring has something, or until `unpark`; not
            /// if that came first.
            10 thread park();
            /// Ends the handler of a user interrupt: returns to the interrupted code.
            11 thread return_from_interrupt();
            /// Starts a thread of the process at an address, with a stack pointer and
            /// a word in a0; returns its number.
            12 now thread_create(entry, stack, argument);
            /// Ends the `park` of a thread, or its next one; it becomes at least as
            /// urgent as `level`.
            13 now unpark(line, level);
            /// Resumes at most `count` waiters at an address, oldest first; returns their number.
            14 now futex_wake(address, count);
            /// Reads from a file descriptor into a range; returns how many bytes, 0
            /// at the end.
            16 later read(file, start, len);
            /// Writes a range to a file descriptor; returns how many bytes.
            17 later write(file, start, len);
            /// Waits until the clock shows a number of ticks.
            18 later sleep_until(deadline);
            /// Waits until a child has ended and returns its status.
            19 later wait(process);
            /// Waits until a thread has ended and returns its result; its number is
            /// dead afterwards. Until then it is at least as urgent as the caller.
            20 later thread_join(thread);
            /// Waits for a `futex_wake` of an address, if the 32-bit word there has
            /// this value, at most until the clock shows `deadline`. Returns
            /// [`WOKEN`](crate::number::WOKEN), [`CHANGED`](crate::number::CHANGED) or
            /// [`TIMED_OUT`](crate::number::TIMED_OUT).
            21 later futex_wait(address, value, deadline);
            /// Ends the calling thread with a result, whose top bit is lost; the last one
            /// ends the process, and the result is its status.
            22 thread thread_exit(result);
            /// Maps a number of pages of zeroes above one that stays unmapped, and returns their
            /// address.
            23 later map_stack(pages);
            /// Makes a child with a copy of memory and descriptors, in which only the calling
            /// thread continues; returns its number, and 0 in the child.
            24 thread fork();
            /// Replaces the program by another of the archive, or else a file of the disk, with an
            /// argument; descriptors stay open. Returns only if it fails.
            25 thread exec(name, name_len, argument, argument_len);
            /// Takes the lock at an address (see [`thread`](crate::thread)), waiting for it: until
            /// then the thread that has it is at least as urgent as the calling one.
            26 thread futex_lock(address);
            /// Gives the lock at an address to the most urgent thread that waits for it.
            27 now futex_unlock(address);
            /// Gives an asynchronous call another level, or the nearest that the process may
            /// have; `call` and `token` as for `cancel`.
            28 now reprio_call(call, token, level);
            /// Applies the levels in the line of a thread that another thread has made more urgent.
            /// Otherwise they would apply only when that thread runs next.
            29 now follow(line);
            /// Ends an asynchronous call early: its completion comes soon, with
            /// [`Cancelled`](crate::Error::Cancelled) unless it has a result already. `call` is the
            /// call's return value, less [`IN_FLIGHT`](crate::number::IN_FLIGHT).
            32 now cancel(call, token);
            /// Makes a socket for TCP; returns its descriptor, which is read, written and closed
            /// like any file.
            40 now socket();
            /// Gives a socket a port.
            41 now bind(file, port);
            /// Listens for connections, of which at most `backlog` wait to be accepted, 1 to 128.
            42 now listen(file, backlog);
            /// Ends writing: the other side reads the end.
            43 now shutdown(file);
            /// Waits for a connection; returns its descriptor.
            44 later accept(file);
            /// Connects a socket to a port of an address, of which the first byte is the
            /// highest.
            45 later connect(file, address, port);
            /// Makes a socket for UDP; returns its descriptor. `bind` gives it a port, 0: any.
            46 now datagram_socket();
            /// Sends a range as a datagram, at most [`MOST`](crate::datagram::MAX_LEN) bytes, to a
            /// port of an address; returns how many bytes. A socket without a port gets one.
            47 later send_to(file, start, len, address, port);
            /// Waits for a datagram. The range gets where it comes from
            /// ([`datagram`](crate::datagram)), then as much of it as there is room for; returns
            /// how many bytes these are.
            48 later receive_from(file, start, len);
            /// Opens a file of the disk; returns its descriptor, at its beginning. The descriptor
            /// is read, written and closed like any other. `flags` are
            /// [`CREATE`](crate::number::CREATE) and [`TRUNCATE`](crate::number::TRUNCATE).
            50 later open(name, name_len, flags);
            /// Waits until all that was written to the disk before, by any program, stays there.
            51 later fsync(file);
            /// Takes the name of a file away; it is gone when no descriptor has it open.
            52 later unlink(name, name_len);
            /// Returns the first file whose number is not below `from`: the range gets its bytes (a
            /// word) and as much of its name as fits. The result is its number plus 1, and the
            /// length of the name times 2³²; 0: there is none.
            53 later list(from, start, len);
            /// Sets the position of the next read or write of a file; returns the file's length in
            /// bytes.
            54 now seek(file, position);
            /// Returns the length of the name of a program of the archive; the range gets the name,
            /// as much as there is room for. 0: the archive has no more programs than `index`.
            55 now program(index, start, len);
            /// Tells of the first process whose place in the table is not below `from`: the range
            /// gets a [`ProcessStatus`](crate::ProcessStatus). Returns the place plus 1; 0: none.
            56 now process(from, start, len);
            /// Tells of a hart: the range gets a [`HartStatus`](crate::HartStatus). Returns the
            /// number of harts.
            57 now hart(index, start, len);
        }
    };
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $number:literal $kind:ident $name:ident($($argument:ident),*);)*) => {
        /// The numbers of the calls, by name.
        #[allow(non_upper_case_globals, reason = "named like the calls")]
        pub mod number {
            $($(#[$doc])* pub const $name: usize = $number;)*

            /// Added to the number of a `later` call: asynchronously.
            pub const ASYNCHRONOUS: usize = 1 << 16;
            /// `futex_wait`: woken by `futex_wake`.
            pub const WOKEN: isize = 0;
            /// `futex_wait`: the word has another value.
            pub const CHANGED: isize = 1;
            /// `futex_wait`: the time is up.
            pub const TIMED_OUT: isize = 2;
            /// Return value of an asynchronous call that has already finished: its result is in a1,
            /// and there will be no completion.
            pub const COMPLETED: isize = 1;
            /// Return value of an asynchronous call that is in flight: this plus a number by which
            /// it can be cancelled.
            pub const IN_FLIGHT: isize = 2;
            /// `open`: creates the file if it does not exist.
            pub const CREATE: usize = 1;
            /// `open`: removes all its bytes.
            pub const TRUNCATE: usize = 2;
            /// `seek`: keeps the position.
            pub const KEEP_POSITION: usize = usize::MAX;
            /// The status of a process that was killed.
            pub const KILLED: isize = 137;
            /// Status of a process that was ended for a fault.
            pub const FAULTED: isize = 139;
        }
    };
}

system_calls!(numbers);
