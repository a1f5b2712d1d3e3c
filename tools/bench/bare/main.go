// Command bare measures the minimal cost of watches: a TLS server that only sends the same bytes to many connections,
// at a fixed rate. Costs of a watch beyond that are the API server's own.
//
//	go run ./tools/bench/bare
//
// Server and readers are separate processes, as in ../main.go. CPU is the server's.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

func main() {
	watchers := flag.Int("watchers", 200, "number of connections")
	rate := flag.Int("rate", 100, "messages per second on each connection")
	size := flag.Int("size", 5300, "bytes of a message; the default is that of an event of ./tools/bench's pods")
	duration := flag.Duration("duration", 4*time.Second, "duration of the measurement")
	address := flag.String("read", "", "address of a server to read from, set by the server for its readers")
	flag.Parse()
	run := func() error { return serve(*watchers, *rate, *size, *duration) }
	if *address != "" {
		run = func() error { return read(*address, *watchers, *size) }
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// serve starts the process of the readers and sends messages to them.
func serve(watchers, rate, size int, duration time.Duration) error {
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	readers := exec.CommandContext(context.Background(), program, "-read", ln.Addr().String(), "-watchers",
		strconv.Itoa(watchers), "-size", strconv.Itoa(size))
	readers.Stdout, readers.Stderr = os.Stdout, os.Stderr
	if err := readers.Start(); err != nil {
		return err
	}
	queues := make([]chan []byte, watchers)
	var sending sync.WaitGroup
	for i := range queues {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		if err := c.(*tls.Conn).Handshake(); err != nil {
			return err
		}
		queues[i] = make(chan []byte, 100)
		sending.Go(func() {
			defer c.Close()
			for doc := range queues[i] {
				if _, err := c.Write(doc); err != nil {
					return
				}
			}
		})
	}
	changes := int(duration.Seconds() * float64(rate))
	before := used()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for range changes {
		<-tick.C
		doc := binary.LittleEndian.AppendUint64(make([]byte, 0, size), uint64(time.Now().UnixNano()))[:size]
		for _, queue := range queues {
			queue <- doc
		}
	}
	for _, queue := range queues {
		close(queue)
	}
	sending.Wait()
	fmt.Printf("server: %.1f µs of CPU per event\n", (used()-before).Seconds()*1e6/float64(changes*watchers))
	return readers.Wait()
}

// used returns this process's CPU time, user and system.
func used() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // does not fail for the process itself
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// read reads until the server closes the connections, and prints the latencies of events.
func read(address string, watchers, size int) error {
	var all []time.Duration
	var mu sync.Mutex
	var reading sync.WaitGroup
	for range watchers {
		c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) // the server is the parent process
		if err != nil {
			return err
		}
		reading.Go(func() {
			took := follow(c, size)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	reading.Wait()
	if len(all) == 0 {
		return fmt.Errorf("read no event from %s", address)
	}
	slices.Sort(all)
	fmt.Printf("readers: p50 %v, p99 %v\n", all[len(all)/2].Round(10*time.Microsecond),
		all[len(all)*99/100].Round(10*time.Microsecond))
	return nil
}

func follow(c net.Conn, size int) (took []time.Duration) {
	defer c.Close()
	doc := make([]byte, size)
	for {
		if _, err := io.ReadFull(c, doc); err != nil {
			return took
		}
		took = append(took, time.Since(time.Unix(0, int64(binary.LittleEndian.Uint64(doc)))))
	}
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
