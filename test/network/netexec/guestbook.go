package main

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// guestbook runs a tier of an application: the frontend writes entries to the leader and reads them from a follower,
// which reads them from the leader. They find each other by the names of their Services.
func guestbook(args []string) error {
	flags := flag.NewFlagSet("guestbook", flag.ExitOnError)
	address := flags.String("http", ":8080", "address to serve on")
	leader := flags.String("leader", "http://agnhost-primary:6379", "the leader's URL")
	follower := flags.String("follower", "http://agnhost-replica:6379", "the followers' URL")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	mux := http.NewServeMux()
	switch args[0] {
	case "leader":
		entries := &book{}
		mux.HandleFunc("POST /entries", entries.add)
		mux.HandleFunc("GET /entries", entries.list)
	case "follower":
		mux.HandleFunc("GET /entries", func(w http.ResponseWriter, _ *http.Request) {
			forward(w, *leader+"/entries", nil)
		})
	case "frontend":
		mux.HandleFunc("GET /guestbook", func(w http.ResponseWriter, r *http.Request) {
			if entry := r.URL.Query().Get("add"); entry != "" {
				forward(w, *leader+"/entries", url.Values{"entry": {entry}})
				return
			}
			forward(w, *follower+"/entries", nil)
		})
	default:
		return fmt.Errorf("%q is not a role", args[0])
	}
	return (&http.Server{Addr: *address, Handler: mux, ReadHeaderTimeout: time.Minute}).ListenAndServe()
}

// forward sends a request to another tier and forwards its response.
func forward(w http.ResponseWriter, target string, form url.Values) {
	client := http.Client{Timeout: 5 * time.Second}
	send := func() (*http.Response, error) { return client.Get(target) }
	if form != nil {
		send = func() (*http.Response, error) { return client.PostForm(target, form) }
	}
	response, err := send()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	w.WriteHeader(response.StatusCode)
	_, _ = io.Copy(w, response.Body)
}

// book holds the leader's entries.
type book struct {
	mu      sync.Mutex
	entries []string
}

func (b *book) add(_ http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries = append(b.entries, r.PostFormValue("entry"))
}

func (b *book) list(w http.ResponseWriter, _ *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = io.WriteString(w, strings.Join(b.entries, "\n"))
}
