// Command bare measures what the budget of watches is held against: a TLS server that does nothing but send
// the same bytes to many connections, so often a second. Whatever a watch costs beyond that is the API
// server's own.
//
//	go run ./tools/bench/bare
//
// Server and readers are processes of their own, as in ../main.go; CPU is the server's.
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
	watchers := flag.Int("watchers", 200, "how many connections are sent to")
	rate := flag.Int("rate", 100, "how often a second")
	size := flag.Int("size", 5300, "how many bytes: an event of ./tools/bench's pods")
	duration := flag.Duration("duration", 4*time.Second, "how long")
	address := flag.String("read", "", "read from a server, for the command's own use")
	flag.Parse()
	run := func() error { return serve(*watchers, *rate, *size, *duration) }
	if *address != "" {
		run = func() error { return read(*address, *watchers, *size) }
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// serve sends to the readers, whose process it starts.
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
	news := make([]chan []byte, watchers)
	var sending sync.WaitGroup
	for i := range news {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		if err := c.(*tls.Conn).Handshake(); err != nil {
			return err
		}
		news[i] = make(chan []byte, 100)
		sending.Go(func() {
			defer c.Close()
			for doc := range news[i] {
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
		for _, n := range news {
			n <- doc
		}
	}
	for _, n := range news {
		close(n)
	}
	sending.Wait()
	fmt.Printf("server: %.1f µs of CPU an event\n", (used()-before).Seconds()*1e6/float64(changes*watchers))
	return readers.Wait()
}

// used is this process's CPU, user and system.
func used() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // of oneself it can always be told
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// read reads until the server has sent all, and tells how long events took.
func read(address string, watchers, size int) error {
	var all []time.Duration
	var mu sync.Mutex
	var reading sync.WaitGroup
	for range watchers {
		c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) // one's own parent
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
		return fmt.Errorf("nothing was read from %s", address)
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
