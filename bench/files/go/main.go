// File benchmarks on Go, with a goroutine per task and the blocking calls of package os. The
// operations are those of bench/kit/src/files/mod.rs.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	block       = 4096
	long        = 1 << 20
	record      = 512
	small       = 10_000
	smallLength = 4000
	bulk        = 8
	big         = 512 << 20
	out         = 64 << 20
	blocks      = big / block
)

func word(number, index uint64) uint64 {
	z := (number<<40 | index) + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// shuffled is the function of this name in bench/kit: the number of the index-th block to read.
func shuffled(index uint64) uint64 {
	x := index % blocks
	x ^= x >> 9
	x = x * 0x9e3779b9 % blocks
	x ^= x >> 8
	x = x * 0x85ebca6b % blocks
	return x ^ x>>9
}

func first(bytes []byte) uint64 { return binary.LittleEndian.Uint64(bytes) }

func sum(bytes []byte) uint64 {
	total := uint64(0)
	for i := 0; i < len(bytes); i += 8 {
		total += first(bytes[i:])
	}
	return total
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func check(good bool, what string) {
	if !good {
		fmt.Fprintln(os.Stderr, what)
		os.Exit(1)
	}
}

func aligned(length int) []byte {
	room := make([]byte, length+4096)
	skip := -int(uintptr(unsafe.Pointer(&room[0]))) & 4095
	return room[skip : skip+length]
}

func pattern(length int) []byte {
	made := aligned(length)
	for i := 0; i < length/8; i++ {
		binary.LittleEndian.PutUint64(made[8*i:], word(small, uint64(i)))
	}
	return made
}

var (
	row     string
	dir     = flag.String("dir", ".", "folder of the files")
	seconds = flag.Float64("seconds", 1, "duration of the measurement in seconds")
	tasks   = flag.Int("tasks", 32, "number of goroutines")
	direct  = flag.Bool("direct", false, "bypass the page cache")
	once    = flag.Bool("once", false, "read each block at most once")
)

type shared struct {
	next    atomic.Uint64
	until   time.Time
	stopped atomic.Bool
}

func (s *shared) take(pieces uint64) (uint64, bool) {
	next := s.next.Add(1) - 1
	return next % pieces, !*once || next < pieces
}

func path(number int) string { return filepath.Join(*dir, "small", fmt.Sprintf("%05d", number)) }

func open(name string, flags int) *os.File {
	return must(os.OpenFile(filepath.Join(*dir, name), flags, 0o666))
}

// run executes the operations of a task until the time is over, and returns the duration of each.
func (s *shared) run(task int, file *os.File) []uint32 {
	var times []uint32
	var buffer []byte
	switch row {
	case "random":
		buffer = aligned(block)
	case "read":
		buffer = aligned(long)
	case "append":
		buffer = pattern(record)
	case "write", "mixed":
		buffer = pattern(long)
	}
	for {
		began := time.Now()
		if s.stopped.Load() || !began.Before(s.until) {
			return times
		}
		switch row {
		case "open":
			number, more := s.take(small)
			if !more {
				return times
			}
			bytes := must(os.ReadFile(path(int(number))))
			check(len(bytes) == smallLength && first(bytes) == word(number, 0), "other bytes than in the file")
		case "random":
			next, more := s.take(blocks)
			if !more {
				return times
			}
			offset := shuffled(next) * block
			must(file.ReadAt(buffer, int64(offset)))
			check(first(buffer) == word(small, offset/8), "other bytes than in the file")
		case "read":
			piece, more := s.take(big / long)
			if !more {
				return times
			}
			must(file.ReadAt(buffer, int64(piece*long)))
			check(first(buffer) == word(small, piece*long/8), "other bytes than in the file")
		case "append":
			binary.LittleEndian.PutUint64(buffer, uint64(task))
			must(file.Write(buffer))
			must(0, syscall.Fdatasync(int(file.Fd())))
		default:
			piece, _ := s.take(out / long)
			binary.LittleEndian.PutUint64(buffer, word(small, piece))
			must(file.WriteAt(buffer, int64(piece*long)))
		}
		times = append(times, uint32(min(time.Since(began), 1<<32-1)))
	}
}

// all runs all tasks, on the file that the row needs, and returns the durations of the operations.
func all(length time.Duration) []uint32 {
	var file *os.File
	switch row {
	case "random", "read":
		flags := os.O_RDONLY
		if *direct {
			flags |= syscall.O_DIRECT
		}
		file = open("big", flags)
		if row == "random" {
			const fadvRandom = 1
			syscall.Syscall6(syscall.SYS_FADVISE64, file.Fd(), 0, 0, fadvRandom, 0, 0)
		}
	case "write":
		file = open("out", os.O_WRONLY|os.O_CREATE)
	case "append":
		file = open("log", os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	}
	s := &shared{until: time.Now().Add(length)}
	times := make([][]uint32, *tasks)
	var group sync.WaitGroup
	for task := range *tasks {
		group.Add(1)
		go func() {
			defer group.Done()
			times[task] = s.run(task, file)
		}()
	}
	group.Wait()
	return slices.Concat(times...)
}

func mixed() []uint32 {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	fmt.Printf("listening on %s\n", listener.Addr())
	peer := must(listener.Accept())
	file := open("big", os.O_RDONLY)
	began()
	times := make([][]uint32, bulk)
	writers := make([]*shared, bulk)
	var group sync.WaitGroup
	for task := range bulk {
		out := open(fmt.Sprintf("bulk-%d", task), os.O_WRONLY|os.O_CREATE)
		s := &shared{until: time.Now().Add(time.Hour)}
		writers[task] = s
		group.Add(1)
		go func() {
			defer group.Done()
			times[task] = s.run(task, out)
		}()
	}
	asked, answer := make([]byte, 8), make([]byte, block)
	for {
		if _, err := io.ReadFull(peer, asked); err != nil {
			break
		}
		must(file.ReadAt(answer, int64(first(asked)*block)))
		must(peer.Write(answer))
	}
	for _, s := range writers {
		s.stopped.Store(true)
	}
	group.Wait()
	return slices.Concat(times...)
}

func checkAll() uint64 {
	total := uint64(0)
	for number := 0; number < small; number += 100 {
		total += sum(must(os.ReadFile(path(number))))
	}
	file := open("big", os.O_RDONLY)
	buffer, piece := make([]byte, block), make([]byte, long)
	for number := 511; number >= 0; number-- {
		must(file.ReadAt(buffer, int64(number*block)))
		total += sum(buffer)
	}
	for number := range 8 {
		must(file.ReadAt(piece, int64(number*long)))
		total += sum(piece)
	}
	written := open("out", os.O_WRONLY|os.O_CREATE)
	for number := range 8 {
		must(written.WriteAt(piece, int64(number*long)))
	}
	must(0, written.Sync())
	log := open("log", os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	for range 20 {
		must(log.Write(pattern(record)))
		must(0, log.Sync())
	}
	return total
}

var (
	start  time.Time
	before syscall.Rusage
)

func began() {
	must(0, syscall.Getrusage(syscall.RUSAGE_SELF, &before))
	start = time.Now()
}

func of(time syscall.Timeval) float64 { return float64(time.Sec) + float64(time.Usec)/1e6 }

func main() {
	check(len(os.Args) > 1, "usage: ROW -dir DIR [-seconds S] [-tasks N] [-direct] [-once]")
	row = os.Args[1]
	must(0, flag.CommandLine.Parse(os.Args[2:]))
	var times []uint32
	total := uint64(0)
	switch row {
	case "mixed":
		times = mixed()
	case "check":
		began()
		total = checkAll()
	default:
		if !*once {
			all(100 * time.Millisecond)
		}
		began()
		times = all(time.Duration(*seconds * 1e9))
	}
	took := time.Since(start).Seconds()
	var after syscall.Rusage
	must(0, syscall.Getrusage(syscall.RUSAGE_SELF, &after))
	slices.Sort(times)
	at := func(quantile float64) float64 {
		if len(times) == 0 {
			return 0
		}
		return float64(times[min(int(float64(len(times))*quantile), len(times)-1)]) / 1e3
	}
	fmt.Printf("{\"ops\":%d,\"seconds\":%.6f,\"p50\":%.2f,\"p99\":%.2f,\"p999\":%.2f,\"user\":%.6f,\"sys\":%.6f,\"sum\":%d}\n",
		len(times), took, at(0.5), at(0.99), at(0.999), of(after.Utime)-of(before.Utime), of(after.Stime)-of(before.Stime), total)
}
