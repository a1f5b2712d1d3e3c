# What a contributor runs. Needs Go, make and git; nothing else is fetched but Go modules.

VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# KUBERNETES is the release whose API is served: go.mod has its libraries.
KUBERNETES  := $(shell sed -n 's|^	k8s.io/api v0\.|v1.|p' go.mod)

# The shipped binaries are static and the same wherever they are built.
GOBUILD := go build -ldflags "-s -w -X github.com/coxswain-dev/coxswain/apiserver.Version=$(KUBERNETES)+coxswain.$(VERSION)"

# Every target compiles with the same flags, so that Go's cache holds each package once: plain for binaries, tests and
# lint, and once more with the race detector. With -trimpath the cache serves every clone, wherever it is. go test runs
# no vet, since make lint does. No debugger reads these builds, and without DWARF the compiler has an eighth less to do.
FLAGS := -trimpath -vet=off -gcflags=all=-dwarf=false
build up demo test race flaky mutants e2e parity kubectl helm extensions operator upstream platforms bench soak \
	compat slow fuzz lint size nightly: export GOFLAGS := $(GOFLAGS) $(FLAGS)
build up demo test e2e parity kubectl helm extensions operator upstream platforms bench soak compat slow fuzz mutants \
	lint size nightly: export CGO_ENABLED := 0

# The race detector needs a C compiler; without one the tests run all the same.
RACE := $(shell command -v $$(go env CC) >/dev/null 2>&1 && echo -race)
WITH_RACE := CGO_ENABLED=$(if $(RACE),1,0)

# gotest runs tests: $(call gotest,name,flags,packages). With RESULTS, a folder, it keeps their times there, and what
# failed runs once more by itself: what passes then is reported as flaky.
ifdef RESULTS
gotest = $(CURDIR)/.tools/gotestsum --format standard-quiet --hide-summary skipped --jsonfile-timing-events $(RESULTS)/$(1).json \
	--rerun-fails=1 --rerun-fails-run-root-test --rerun-fails-report $(RESULTS)/$(1).flaky --packages "$(3)" -- $(2)
else
gotest = go test $(2) $(3)
endif

.DEFAULT_GOAL := help

.PHONY: help
help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## bin/coxswain and bin/kubectl-lite, static
	@test -x bin/coxswain || echo "The first build compiles etcd and Kubernetes' client libraries: it takes some minutes, later ones seconds."
	$(GOBUILD) -o bin/ ./cmd/...

.PHONY: up
up: build ## build, then run a control plane in the foreground, data in ./.coxswain (ARGS has its flags)
	@exec bin/coxswain up --data-dir ./.coxswain $(ARGS)

.PHONY: assets
assets: build ## bin/assets: etcd, kube-apiserver and kubectl for suites that use envtest (KUBEBUILDER_ASSETS)
	@bin/coxswain assets bin/assets

.PHONY: demo
demo: build ## run the tour of examples/ on a control plane of its own, then end it
	@COXSWAIN=bin/coxswain KUBECTL="$(KUBECTL)" sh examples/demo.sh

# RACED are the packages that share memory between goroutines, those that take longest first; a test of make lint keeps
# the list complete.
RACED := $(addprefix ./,$(shell sed '/^\#/d' test/raced.txt))

# WALKS are tests that put every kind, field or command through the same code, one after the other. The race detector
# makes them ten times slower and sees nothing in the last case that it did not see in the first: they run without it.
WALKED := ./apiserver ./apiserver/fieldmanager ./api/openapi ./kubectl-lite
WALKS := ^(TestParity|TestSubresource_EachWriteChangesItsOwnPartOnly|TestPatchNamed_EqualsAWholePatch|$\
	TestAdmission_EachPluginActsWhereItRunsAndOnlyThere|TestGzip_RequestBodiesAreNotDecompressed|$\
	TestDocuments_DescribeEveryKindOfKubernetes|TestCustomOwnership_IsTheLibrarys|TestClients_EveryKindAndVerb|$\
	TestAttackMatrix_EveryIdentityHasExactlyItsRights)$$

.PHONY: test
test: $(if $(RESULTS),.tools/gotestsum) ## unit and integration tests, those of concurrent packages with the race detector; make lint has the rest
	@echo "the packages of test/raced.txt, with the race detector:"
	@$(WITH_RACE) $(call gotest,raced,$(RACE) -timeout 20m -skip '$(WALKS)',$(RACED))
	@echo "their walks, and all other packages:"
	@$(call gotest,walks,-timeout 20m -run '$(WALKS)',$(WALKED))
	@$(call gotest,plain,-timeout 20m,$$(go list ./... | grep -vxF -e $$(go list -m)/test $$(go list $(RACED) | sed 's/^/-e /')))

.PHONY: race
race: ## with the race detector, the tests that make test runs without it
	$(WITH_RACE) go test $(RACE) -timeout 60m -run '$(WALKS)' $(WALKED)
	$(WITH_RACE) go test $(RACE) -timeout 60m $$(go list ./... | grep -vxF -e $$(go list -m)/test $$(go list $(RACED) | sed 's/^/-e /'))

# COUNT is how often; FLAKY are the packages. Each count takes about ten minutes on two cores.
COUNT ?= 3
FLAKY ?= ./...

.PHONY: flaky
flaky: ## look for tests that fail by chance: each COUNT times, with the race detector, beside as many busy loops as cores
	@for i in $$(seq $$(getconf _NPROCESSORS_ONLN)); do sh -c 'while :; do :; done' & load="$$load $$!"; done; \
		trap "kill $$load" EXIT; trap 'exit 130' INT TERM; \
		$(WITH_RACE) go test $(RACE) -count=$(COUNT) -timeout 4h $(FLAKY)

.PHONY: e2e
e2e: build parity helm extensions operator $(if $(RESULTS),.tools/gotestsum) ## black-box tests: real kubectl and Helm, curl, kill -9, external etcd, compose
	$(E2E_ENV) $(call gotest,e2e,-tags e2e -p 3 -parallel 6 -count=1 -timeout 30m -skip '$(SLOW)',$(E2E))

# The packages of black-box tests run beside each other, and many tests of each, since they mostly wait. SLOW are left to
# make nightly: tests that measure, which nothing may run beside, and one that waits for minutes.
E2E ?= ./test/e2e ./test/network ./test/conformance ./test/modes ./test/linearizability
SLOW := ^(TestOverload_|TestHA$$|TestKills_)
E2E_ENV = KUBECONFIG= COXSWAIN_BIN=$(CURDIR)/bin EXTENSIONS=$(CURDIR)/.tools HELM="$(or $(HELM),$(CURDIR)/.tools/helm)" \
	KUBECTL="$(or $(KUBECTL),$(shell command -v kubectl || echo $(CURDIR)/.tools/kubectl))"

# FUZZTIME is how long each target is fuzzed; FUZZ chooses packages.
FUZZTIME ?= 10s
FUZZ ?= .

.PHONY: fuzz
fuzz: ## fuzz every target for FUZZTIME each, one per core at once (FUZZ=./apiserver/patch for some alone)
	@FUZZTIME=$(FUZZTIME) sh tools/fuzz/run $(FUZZ)

.PHONY: parity
parity: kubectl ## check the recording of kubectl that kubectl-lite is tested against (ARGS=-record renews it)
	KUBECTL=$(CURDIR)/.tools/kubectl go test -tags e2e -count=1 -v -run TestParity_Recording ./kubectl-lite $(ARGS)

# MUTANTS chooses some, by parts of their names or files.
.PHONY: mutants
mutants: ## break the code in chosen places, one at a time, and check that a test fails each time (MUTANTS chooses)
	go run ./test/mutants $(MUTANTS)

.PHONY: soak
soak: build ## 100 kills, pauses and cut-offs of servers under load; what clients saw is checked against a model
	COXSWAIN_SOAK=100 COXSWAIN_BIN=$(CURDIR)/bin go test -tags e2e -count=1 -timeout 60m -v ./test/linearizability

# CLIENT_GO are the releases of client-go whose informers are built and compared. Each takes a minute or two to compile.
CLIENT_GO ?= v0.32.0,v0.33.0,v0.34.0,v0.35.0,v0.36.0,$(KUBERNETES:v1%=v0%)

.PHONY: compat
compat: ## informers of earlier releases of client-go see what today's sees
	COMPAT_CLIENT_GO=$(CLIENT_GO) go test -tags e2e -count=1 -timeout 60m -v ./test/compat

.PHONY: slow
slow: build kubectl ## the black-box tests that make e2e leaves out: attacks of minutes, and what they do to other clients
	$(E2E_ENV) go test -tags e2e -p 1 -count=1 -timeout 60m -v -run '$(SLOW)' $(E2E)

# NIGHTLY are the targets of make nightly. One that fails does not keep the next from running.
NIGHTLY ?= lint race e2e slow soak compat upstream platforms mutants fuzz flaky

nightly: export UPSTREAM := $(or $(UPSTREAM),all)

.PHONY: nightly
nightly: ## everything that is too slow for each change; takes hours, goes on after a failure and lists what failed
	@for target in $(NIGHTLY); do echo "=== make $$target"; $(MAKE) $$target || failed="$$failed $$target"; done; \
		test -z "$$failed" || { echo "FAILED:$$failed"; exit 1; }

# Programs of other projects, each of the release in its go.mod since another's output may differ. They are built once
# for all clones: .ci/tool keeps them by the content of their module.
TOOL := sh .ci/tool

.PHONY: kubectl
kubectl:
	@$(TOOL) test/kubectl -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)" .

.PHONY: helm
helm:
	@test -n "$(HELM)" || $(TOOL) test/helm -ldflags "-s -w" tool

.PHONY: extensions
extensions: ## Kubernetes' sample-apiserver, metrics-server, and an adapter of external metrics; the first build takes minutes
	@$(TOOL) test/extensions -ldflags "-s -w" tool ./adapter

.PHONY: dashboards
dashboards: ## the list of metrics that dashboards query, from a checkout of kube-prometheus: KUBE_PROMETHEUS=DIR
	@test -d "$(KUBE_PROMETHEUS)/manifests" || { echo "KUBE_PROMETHEUS: not a checkout of kube-prometheus"; exit 1; }
	cd test/promql && go run . \
		"github.com/prometheus-operator/kube-prometheus at $$(git -C $(abspath $(KUBE_PROMETHEUS)) rev-parse --short=12 HEAD)" \
		$(abspath $(KUBE_PROMETHEUS))/manifests/*rometheusRule.yaml \
		$(abspath $(KUBE_PROMETHEUS))/manifests/grafana-dashboardDefinitions.yaml > ../../cmd/coxswain/testdata/dashboards.txt

.PHONY: .tools/lint .tools/gotestsum
.tools/lint .tools/gotestsum:
	@$(TOOL) tools/lint . tool

# The example is a module of its own, as an operator is; ./... of this one leaves it out. In a workspace with this module
# it shares what is compiled already.
operator: export GOWORK := $(CURDIR)/.tools/go.work

.PHONY: operator
operator: assets .tools/lint ## check examples/operator, and test it three ways: testenv, envtest with our assets, from Python
	@printf 'go 1.26.0\n\nuse (\n\t..\n\t../examples/operator\n)\n' >$(GOWORK)
	cd examples/operator && go vet -vettool=$(CURDIR)/.tools/lint ./... && go test -count=1 ./...
	cd examples/operator && KUBEBUILDER_ASSETS=$(CURDIR)/bin/assets COXSWAIN_ASSETS=full go test -count=1 ./...
	cd examples/operator && go build -o ../../.tools/operator .
	@if command -v python3 >/dev/null; then set -x; cd examples/operator && \
		COXSWAIN=$(CURDIR)/bin/coxswain OPERATOR=$(CURDIR)/.tools/operator python3 -m unittest test_operator; \
		else echo "SKIPPED: no python3: the example operator is not tested from Python"; fi

# UPSTREAM chooses suites by parts of their names, such as lws or pkg/cache; "all" is all of them. Without it those that
# take minutes are left out.
.PHONY: upstream
upstream: assets ## other projects' own suites, unmodified, with our assets in the place of envtest's: docs/testing-operators.md
	go run ./test/upstream $(UPSTREAM)

# What is Linux only is behind build constraints. Windows is left out: the server needs file locks and signals of Unix.
PLATFORMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64

.PHONY: platforms
platforms: ## go vet of all that ships, for every platform of a release; each is compiled anew
	@for p in $(PLATFORMS); do (set -x; GOOS=$${p%/*} GOARCH=$${p#*/} go vet ./cmd/... ./testenv/... ./tools/release) || exit 1; done

# Reproducible: the same commit and the same Go make the same bytes. Each platform is compiled anew, which takes minutes.
.PHONY: release
release: ## dist: archives for Linux and macOS, envtest's assets with their index, checksums and SBOM (RELEASE has flags)
	go run ./tools/release -out dist $(RELEASE)

.PHONY: bench
bench: build ## write the table of docs/performance.md (BENCH has flags and workloads instead), then the Go benchmarks, short
	go run ./tools/bench $(or $(BENCH),-page docs/performance.md)
	go test -run '^$$' -bench . -benchtime 200ms -benchmem ./...

.PHONY: hooks
hooks: ## let git check each commit's message before it makes the commit
	git config core.hooksPath .githooks

.PHONY: lint
lint: .tools/lint ## commits' messages, gofmt, the analyzers of go vet and staticcheck, the floors of the architecture
	go run ./tools/commits
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "gofmt -l:"; echo "$$unformatted"; exit 1; }
	go vet -vettool=$(CURDIR)/.tools/lint -tags e2e ./...
	go test -count=1 ./test

.PHONY: size
size: build ## what each binary weighs, and what each direct dependency adds
	@ls -l bin | awk 'NR > 1 {printf "%8.1f MB  bin/%s\n", $$5 / 1e6, $$NF}'
	@go run ./tools/size ./cmd/coxswain
	@go run ./tools/size ./cmd/kubectl-lite
