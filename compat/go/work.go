// Package main is a library of C that computes.
package main

import "C"

import "time"

// Work computes for so many microseconds, in calls that are deep enough for the stack of a
// goroutine to grow, and makes garbage.
//
//export Work
func Work(micros C.longlong) C.longlong {
	began := time.Now()
	n := int64(0)
	for time.Since(began) < time.Duration(micros)*time.Microsecond {
		n += deep(6, n)
		garbage = make([]int64, 64)
	}
	return C.longlong(n)
}

// Keeps what Work allocates from being left out.
var garbage []int64

//go:noinline
func deep(calls int, n int64) int64 {
	var places [16]int64
	for i := range places {
		places[i] = n + int64(i)
	}
	if calls > 0 {
		return deep(calls-1, n+1) + places[3] - places[2]
	}
	return places[1] - places[0]
}

func main() {}
