// Plaintext, matrix and spin servers in Go with GOMAXPROCS=1, or as many as -workers says.
//
// plaintext, variant net (default): raw net, a goroutine per connection; variant http: net/http without the Date
// header. matrix: three goroutines and two channels of 16 per connection. spin: a goroutine per request (spin.go).
// app: net/http with the product of two matrices (app.go).
package main

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"math"
	"net"
	"net/http"
	"os"
	"runtime"
)

const (
	queue    = 16
	maxN     = 1024
	maxHead  = 8 * 1024
	readSize = 8 * 1024
)

var reply = []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!")

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: plaintext|matrix|spin|app [--variant net|http] [--workers N] [--listen ADDR:PORT]")
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	variant := flags.String("variant", "net", "net or http")
	listen := flags.String("listen", "127.0.0.1:0", "address")
	workers := flags.Int("workers", 1, "GOMAXPROCS")
	_ = flags.Parse(os.Args[2:])
	runtime.GOMAXPROCS(*workers)
	if os.Args[1] == "spin" {
		calibrate()
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", listener.Addr())
	switch {
	case os.Args[1] == "matrix":
		log.Fatal(serve(listener, matrix))
	case os.Args[1] == "spin":
		log.Fatal(serve(listener, spin))
	case os.Args[1] == "app":
		log.Fatal(http.Serve(listener, app()))
	case *variant == "http":
		log.Fatal(http.Serve(listener, http.HandlerFunc(page)))
	default:
		log.Fatal(serve(listener, plaintext))
	}
}

// serve runs one goroutine per connection; Go sets TCP_NODELAY by itself.
func serve(listener net.Listener, converse func(net.Conn)) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go converse(conn)
	}
}

var body = []byte("Hello, World!")

func page(w http.ResponseWriter, _ *http.Request) {
	header := w.Header()
	header["Date"] = nil
	header["Content-Type"] = []string{"text/plain"}
	header["Content-Length"] = []string{"13"}
	_, _ = w.Write(body)
}

// plaintext answers every empty line; the content of requests is not looked at.
func plaintext(conn net.Conn) {
	defer conn.Close()
	input := make([]byte, readSize+maxHead)
	output := make([]byte, 0, 4096)
	filled := 0
	for {
		n, err := conn.Read(input[filled:])
		if err != nil {
			return
		}
		filled += n
		used := 0
		for {
			end := bytes.Index(input[used:filled], []byte("\r\n\r\n"))
			if end < 0 {
				break
			}
			used += end + 4
			output = append(output, reply...)
		}
		if _, err := conn.Write(output); err != nil {
			return
		}
		output = output[:0]
		filled = copy(input, input[used:filled])
		if filled > maxHead {
			return
		}
	}
}

func matrix(conn net.Conn) {
	frames := make(chan []byte, queue)
	squares := make(chan []byte, queue)
	done := make(chan struct{})
	go func() {
		defer close(squares)
		for frame := range frames {
			squares <- square(frame)
		}
	}()
	go func() {
		defer close(done)
		defer conn.Close()
		for out := range squares {
			if _, err := conn.Write(out); err != nil {
				conn.Close()
				for range squares {
				}
				return
			}
		}
	}()
	receive(conn, frames)
	close(frames)
	<-done
}

// receive cuts the stream into frames with as few reads as the data allow.
func receive(conn net.Conn, frames chan<- []byte) {
	var head [4]byte
	input := make([]byte, readSize)
	var frame []byte
	headLen, missing := 0, 0
	for {
		n, err := conn.Read(input)
		if err != nil {
			return
		}
		for chunk := input[:n]; len(chunk) > 0; {
			if headLen < 4 {
				c := copy(head[headLen:], chunk)
				headLen += c
				chunk = chunk[c:]
				if headLen < 4 {
					break
				}
				missing = int(binary.LittleEndian.Uint32(head[:]))
				if order(missing) == 0 {
					return
				}
				frame = make([]byte, 0, missing)
			}
			c := min(missing, len(chunk))
			frame = append(frame, chunk[:c]...)
			chunk = chunk[c:]
			missing -= c
			if missing == 0 {
				frames <- frame
				headLen = 0
			}
		}
	}
}

// order is the n of a payload of 8*n*n bytes, 0 if there is none up to maxN.
func order(length int) int {
	n := int(math.Sqrt(float64(length / 8)))
	if n > maxN || 8*n*n != length {
		return 0
	}
	return n
}

// square is the reply frame: the wrapping product in i-k-j order, as in the other servers.
func square(payload []byte) []byte {
	n := order(len(payload))
	out := make([]byte, 4+len(payload))
	binary.LittleEndian.PutUint32(out, uint32(len(payload)))
	cells := make([]uint64, n*n)
	for i := range cells {
		cells[i] = binary.LittleEndian.Uint64(payload[8*i:])
	}
	sums := make([]uint64, n)
	for i := 0; i < n; i++ {
		clear(sums)
		for k := 0; k < n; k++ {
			a := cells[i*n+k]
			row := cells[k*n : k*n+n]
			for j, b := range row {
				sums[j] += a * b
			}
		}
		for j, sum := range sums {
			binary.LittleEndian.PutUint64(out[4+8*(i*n+j):], sum)
		}
	}
	return out
}
