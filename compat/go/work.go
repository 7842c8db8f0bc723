// Package main is a C library that computes.
package main

import "C"

import "time"

// Work computes for the given number of microseconds. Its calls are nested deeply enough for the
// stack of a goroutine to grow, and it makes garbage.
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

// The compiler cannot remove the allocations of Work, because they are assigned to this variable.
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
