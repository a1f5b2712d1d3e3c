// Package wallclock changes the wall clock of a running process, for tests with wrong clocks. The process needs neither
// a restart nor a special build. The package works on Linux on amd64.
package wallclock
