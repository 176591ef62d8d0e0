{{- define "backlogctl.name" -}}
{{- $own := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{- $own | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "backlogctl.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "backlogctl.labels" -}}
{{ include "backlogctl.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- /* backlog.yaml as a mapping; refused here, not by a pod that does not start. */ -}}
{{- define "backlogctl.checkConfig" -}}
{{- $config := fromYaml .Values.config -}}
{{- with $config.Error }}{{ fail (printf "config: it is no YAML mapping: %s; give backlog.yaml by --set-file config=backlog.yaml" .) }}{{ end -}}
{{- if not $config.ledger }}{{ fail "config: it names no ledger, whose default is beside the file, which no pod can write; set `ledger: sqlite:////var/lib/backlogctl/ledger.db` or a PostgreSQL database" }}{{ end -}}
{{- if and (hasPrefix "sqlite" (toString $config.ledger)) (not .Values.persistence.enabled) }}{{ fail "config: the ledger is SQLite, and without persistence it would end with the pod; set persistence.enabled, or name a PostgreSQL ledger" }}{{ end -}}
{{- end -}}

{{- define "backlogctl.scheme" -}}
{{- $watch := (fromYaml .Values.config).watch | default dict -}}
{{- empty $watch.tls | ternary "http" "https" -}}
{{- end -}}

{{- /* What both containers of the pod have. */ -}}
{{- define "backlogctl.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
env:
  - name: BACKLOG_CONFIG
    value: /etc/backlogctl/backlog.yaml
{{- with .Values.environmentFrom }}
envFrom:
  {{- range . }}
  - secretRef:
      name: {{ . }}
  {{- end }}
{{- end }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - name: config
    mountPath: /etc/backlogctl
    readOnly: true
  - name: data
    mountPath: /var/lib/backlogctl
  - name: scratch
    mountPath: /tmp
  {{- range $number, $one := .Values.files }}
  - name: files-{{ $number }}
    mountPath: {{ $one.path }}
    readOnly: true
  {{- end }}
{{- end -}}
